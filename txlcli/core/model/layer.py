"""One layer of a Transformer-XL, and the memory of section 3.2 that it reads: the hidden states of earlier segments.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, d model width.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.model_settings import TransformerSettings
from txlcli.core.backend import Attend, Rotation, ScoreTerms
from txlcli.core.kernels.device import cast_for_products
from txlcli.core.kernels.linear import Linear
from txlcli.core.model import backends
from txlcli.core.model.attention import Attention
from txlcli.core.model.base import Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.sublayers import GruGate, make_feed_forward, make_norm


class Past(ABC):
    """Keys and values of the tokens before a segment, as one layer sees them."""

    attend: Attend | None = None
    """Computes the attention to this past, where its keys are not simply in order; None: as the layer does."""

    @abstractmethod
    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Return the keys and values of past and segment; a past may also store the segment's.

        Args:
            keys: (B, H, L, D).
            values: (B, H, L, D).
        Returns:
            (B, H, K, D) each; the last L positions are the segment's.
        """

    def end_segment(self, layer_input: Tensor, remembered: Tensor) -> None:  # noqa: B027 - not every past needs it
        """Update what this past needs the weights of its layer for, which calls it at the end of its forward pass.

        Nothing by default. With train.parallel = "fsdp" a layer has its weights there only.

        Args:
            layer_input: (B, L, d).
            remembered: what a memory keeps of the segment, (B, L, d), without gradient.
        """


class Layer(nn.Module):
    """One layer: attention over past and segment, then feed-forward, each with residual and norm."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.pre_norm = settings.norm != "post"
        self.remembers_output = settings.memory_source == "layer_output"
        self.attention = Attention(
            d_model=settings.d_model,
            n_heads=settings.n_heads,
            d_head=settings.d_head,
            dropout=settings.attention_dropout,
            linear=Linear,
            qk_norm_eps=settings.norm_eps if settings.parts.qk_norm == "rms" else None,
        )
        self.attention_norm = make_norm(settings)
        self.feed_forward = make_feed_forward(settings)
        self.ff_norm = make_norm(settings)
        gated = settings.gating == "gru"
        self.attention_gate, self.feed_forward_gate = (GruGate(settings) if gated else None for _ in range(2))
        self.dropout = Dropout(settings.dropout, variational=settings.variational_dropout)

    def pack(self, dtype: torch.dtype) -> None:
        backends.pack(self.attention, dtype)
        for part in (self.feed_forward, self.attention_gate, self.feed_forward_gate):
            if part is not None:
                part.pack(dtype)

    def memory_input(self, hidden: Tensor) -> Tensor:
        """Return hidden states (B, x, d) as memory keeps them: in the dtype of products, if nothing else reads them."""
        return hidden if self.pre_norm else cast_for_products(hidden)

    def attention_input(self, hidden: Tensor) -> Tensor:
        """Return the input of the projections to queries, keys and values, from layer inputs (B, x, d)."""
        normed: Tensor = self.attention_norm(hidden) if self.pre_norm else hidden
        return cast_for_products(normed)

    def forward(
        self, hidden: Tensor, past: Past, terms: ScoreTerms, *, count: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Read one segment (B, L, d) after a past.

        Args:
            hidden: the output of the layer below.
            past: keys and values before the segment; it may store the segment's.
            terms: what the encoding adds to the score.
            count: number of final positions to compute, 0 included; all by default.
        Returns:
            The output (B, count, d), and what a memory keeps, without gradient: the input (B, L, d), or the output.
        """
        layer_input = self.memory_input(hidden)
        normed = self.attention_input(layer_input)
        n_skipped = 0 if count is None else hidden.shape[1] - count
        if n_skipped:
            hidden, query = hidden[:, n_skipped:], self.attention.project_queries(normed[:, n_skipped:])
            key, value = self.attention.project_keys_values(normed)
        else:
            query, (key, value) = self.attention.project(normed)
        if terms.rotation is not None:
            query, key = _rotated(query, key, terms.rotation)
        keys_values = past.extend(key, value)
        if query.shape[2]:
            hidden = self._residual_block(hidden, self.attention(query, keys_values, terms, past.attend))
        remembered = (self.memory_input(hidden) if self.remembers_output else layer_input).detach()  # SG(h) of 3.2
        past.end_segment(layer_input, remembered)
        return hidden, remembered

    def _residual_block(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Join the output of attention to the layer input, then the feed-forward sublayer, each with its norm.

        Returns (B, L, d); `attended` is overwritten.
        """
        hidden = self._join(attended, hidden, self.attention_gate)
        if self.pre_norm:
            return self._join(self.feed_forward(self.ff_norm(hidden)), hidden, self.feed_forward_gate)
        hidden = self.attention_norm(hidden)
        normed: Tensor = self.ff_norm(self._join(self.feed_forward(hidden), hidden, self.feed_forward_gate))
        return normed

    def _join(self, branch: Tensor, hidden: Tensor, gate: GruGate | None) -> Tensor:
        """Apply dropout to the branch and add the residual (B, L, d), in place if the dtypes match; or gate both."""
        if gate is not None:
            gated: Tensor = gate(hidden, self.dropout.after_relu(branch))
            return gated
        dropped: Tensor = self.dropout(branch)
        return dropped.add_(hidden) if dropped.dtype == hidden.dtype else dropped + hidden


def rotated(terms: Sequence[ScoreTerms], rotation: Rotation | None) -> Sequence[ScoreTerms]:
    """Return the score terms of each layer with the rotation of a segment."""
    return terms if rotation is None else [dataclasses.replace(added, rotation=rotation) for added in terms]


def _rotated(query: Tensor, key: Tensor, rotation: Rotation) -> tuple[Tensor, Tensor]:
    """Apply the rotation of a segment's positions to its keys, and to the queries of its last positions."""
    missing = key.shape[2] - query.shape[2]
    if not missing:
        return rotation.apply(query), rotation.apply(key)
    return rotation.apply(F.pad(query, (0, 0, missing, 0)))[:, :, missing:], rotation.apply(key)


class GrowingMemory(Past):
    """Keys and values of [SG(m) o h], the extended context of section 3.2.

    The memory m holds layer inputs, or outputs, without gradient. They are projected with the current weights and
    concatenated with the keys and values of the segment, which equals projecting the concatenation.

    Args:
        layer: whose memory it is.
        memory: (B, M, d), detached.
        mem_len: positions to keep for the next segment.
        rotation: of the positions of the memory, if the encoding rotates keys.
    """

    def __init__(self, layer: Layer, memory: Tensor, *, mem_len: int = 0, rotation: Rotation | None = None) -> None:
        self.layer, self.mem_len, self.rotation = layer, mem_len, rotation
        self._memory = memory

    @property
    def memory(self) -> Tensor:
        """Hidden states before the segment that are projected to keys and values, oldest first, (B, x, d)."""
        return self._memory

    @property
    def length(self) -> int:
        """Number of these hidden states."""
        return self._memory.shape[1]

    def after(self, remembered: Tensor) -> Memory:
        """Return the memory of this layer after the segment, of which it keeps `remembered` (B, L, d)."""
        return [update_memory(self._memory, remembered, mem_len=self.mem_len)]

    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        if not self.length:
            return keys, values
        # A resumed run may have another precision than the one that its memory was saved in.
        dtype = self.layer.attention_norm.weight.dtype if self.layer.pre_norm else keys.dtype
        normed = self.layer.attention_input(self.memory.to(dtype))
        old_keys, old_values = self.layer.attention.project_keys_values(normed)
        if self.rotation is not None:
            old_keys = self.rotation.apply(old_keys)
        return torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)


def update_memory(memory: Tensor, hidden: Tensor, *, mem_len: int) -> Tensor:
    """Return the last `mem_len` positions of [memory o hidden] (section 3.2).

    Args:
        memory: (B, M, d), M up to mem_len.
        hidden: (B, L, d), what a layer keeps of the segment that was just read, detached.
    Returns:
        (B, min(M + L, mem_len), d), in the dtype of `hidden`.
    """
    if hidden.shape[1] <= mem_len:
        forgotten = max(0, memory.shape[1] + hidden.shape[1] - mem_len)  # positions
        return torch.cat([memory[:, forgotten:].to(hidden.dtype), hidden], dim=1)
    return hidden[:, hidden.shape[1] - mem_len :].clone()  # a view would keep the whole segment alive
