"""One layer of a Transformer-XL, and the memory of section 3.2 that it reads: the hidden states of earlier segments.

A layer is a pure function of a segment, a memory and score terms; only the `Past` of a reader stores what it projects.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, d model width.
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.model_settings import TransformerSettings
from txlcli.core.backend import Attend, Rotation, ScoreTerms, pad_to
from txlcli.core.kernels.compilation import compiled
from txlcli.core.kernels.compiled_layers import ContextProducts, joined_heads
from txlcli.core.kernels.device import cast_for_products
from txlcli.core.model.attention import Attention, split_heads
from txlcli.core.model.backends import FAST, Backend
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.linear import Linear
from txlcli.core.model.sublayers import FeedForward, GruGate, make_feed_forward, make_norm


class Past(ABC):
    """The tokens before a segment, as one layer sees them."""

    attend: Attend | None = None
    """Computes the attention to this past, where its keys are not simply in order; None: as the layer does."""

    @abstractmethod
    def extend(self, keys: Tensor, values: Tensor, layer: "Layer", rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return the keys and values of past and segment, (B, H, K, D) each, given the segment's, (B, H, L, D) each.

        A reader's past stores the keys and values of each segment. A `HiddenMemory` has hidden states, which the layer
        projects now, and rotates to the positions before the segment.
        """


@dataclass(frozen=True, kw_only=True)
class HiddenMemory(Past):
    """The memory m of section 3.2: hidden states before a segment, which a layer projects with its current weights."""

    hidden: Tensor
    """Layer inputs without gradient, oldest first, (B, M, d)."""
    segment: Tensor | None = None
    """Layer inputs of the present segment, (B, x, d), if a reader has read the beginning of it before."""
    ends: bool = True
    """False if these tokens do not end the segment, so that nothing is remembered yet."""

    @property
    def remembered(self) -> Tensor:
        """Hidden states of earlier segments, (B, x, d)."""
        return self.hidden

    @property
    def states(self) -> Tensor:
        """Hidden states that are projected to keys and values, (B, x, d)."""
        if self.segment is None:
            return self.remembered
        return torch.cat([self.remembered, self.segment], dim=1)

    @property
    def length(self) -> int:
        """Number of these hidden states."""
        return self.hidden.shape[1] + self.segment_len

    @property
    def segment_len(self) -> int:
        """Number of tokens of the present segment that were read before."""
        return 0 if self.segment is None else self.segment.shape[1]

    def whole_segment(self, kept: Tensor) -> Tensor:
        """Return the inputs of the layer (B, L, d) since the segment began, given those of its last tokens."""
        if self.segment is None:
            return kept
        return torch.cat([self.segment, kept], dim=1)

    def extend(self, keys: Tensor, values: Tensor, layer: "Layer", rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        if not self.length:
            return keys, values
        if rotation is not None:
            rotation = rotation.before(keys.shape[2])
        old_keys, old_values = layer.project_past(self.states, rotation)  # equals projecting the context
        return torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)


def update_memory(memory: Tensor, hidden: Tensor, *, mem_len: int) -> Tensor:
    """Return the last `mem_len` positions of [memory o hidden] (section 3.2).

    Args:
        memory: (B, M, d), M up to mem_len.
        hidden: (B, L, d), what a layer keeps of the segment that was just read, detached.
    Returns:
        (B, min(M + L, mem_len), d).
    """
    length = hidden.shape[1]
    if length == mem_len:
        return hidden.contiguous()
    old = memory[:, max(0, memory.shape[1] + length - mem_len) :]
    new = hidden[:, max(0, length - mem_len) :]
    return torch.cat([old, new], dim=1)  # a copy, because a view would keep the whole segment alive


class LayerOutput(NamedTuple):
    """Results of one layer for a segment."""

    hidden: Tensor
    """The output (B, L, d), or that of the last `count` positions."""
    kept: Tensor
    """The input, which a memory keeps: SG(h) of section 3.2, (B, L, d), no gradient. Its rows never end in zeros."""
    slots: Tensor | None = None
    """Compressed positions (B, x, d) that have left the memory, without gradient."""
    loss: Tensor | None = None
    """A loss of the layer's own (0-d), which training adds to its objective."""
    next_input: Tensor | None = None
    """`memory_input` of `hidden`, for the next layer; made here, it takes no pass of its own."""


class Layer(nn.Module):
    """One layer: attention over past and segment, then feed-forward, each with residual and norm."""

    backend: Backend = FAST

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.d_model = settings.d_model
        self.pre_norm = settings.norm != "post"
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
        self.attention_gate = GruGate(settings) if gated else None
        self.feed_forward_gate = GruGate(settings) if gated else None
        self.dropout = Dropout.of(settings)
        """Of the output of attention."""
        self.feed_forward_dropout = Dropout.of(settings, "feed_forward_dropout")
        self.projection_dropout = Dropout.of(settings, "projection_dropout")

    @property
    def overwrites_feed_forward(self) -> bool:
        """True if the residual may be added to the output of the feed-forward sublayer in place.

        A registered sublayer may be any module: only a `FeedForward` declares this.
        """
        return isinstance(self.feed_forward, FeedForward) and self.feed_forward.output_may_be_overwritten

    @property
    def reads_padded_rows(self) -> bool:
        """True if rows of the input of the feed-forward sublayer may end in zeros."""
        return isinstance(self.feed_forward, FeedForward) and self.feed_forward.reads_padded_rows

    def memory_input(self, hidden: Tensor) -> Tensor:
        """Return hidden states (B, x, d) as memory keeps them: in the dtype of products, if nothing else reads them."""
        return hidden if self.pre_norm else cast_for_products(hidden)

    def attention_input(self, hidden: Tensor) -> Tensor:
        """Return the input of the projections to queries, keys and values, from layer inputs (B, x, d)."""
        normed: Tensor = self.attention_norm(hidden) if self.pre_norm else hidden
        return cast_for_products(normed)

    def project_past(self, states: Tensor, rotation: Rotation | None) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, M, D) of the hidden states (B, M, d) of a memory."""
        keys, values = self.attention.project_keys_values(self.attention_input(states))
        if rotation is not None:
            keys = rotation.apply(keys)
        return keys, values

    def forward(
        self, hidden: Tensor, past: Past, terms: ScoreTerms, count: int | None = None, layer_input: Tensor | None = None
    ) -> LayerOutput:
        """Read one segment (B, L, d) after a past.

        Everything that needs the weights of the layer happens here: with train.parallel = "fsdp" they are there only
        during this call.

        Args:
            hidden: the output of the layer below.
            past: a memory, which is projected, or the keys and values that a reader keeps.
            terms: what the encoding adds to the score.
            count: number of final positions to compute, 0 included; all by default.
            layer_input: `memory_input` of `hidden`, if it has been made.
        """
        terms = self.attention.project_distances(terms, self.projection_dropout)
        if self.backend.attend_context is None:
            return self._forward_from_segment(hidden, past, terms, count)
        assert isinstance(past, HiddenMemory)
        assert count is None
        return self._forward_from_context(hidden, past, terms, layer_input)

    def _forward_from_segment(self, hidden: Tensor, past: Past, terms: ScoreTerms, count: int | None) -> LayerOutput:
        """Project the segment (B, L, d); the past puts its own keys and values before the segment's."""
        first = 0 if count is None else hidden.shape[1] - count
        drop = self.projection_dropout
        compiles = self.backend.compiles_reading
        layer_input, query, keys, values = compiled(Layer._project, compiles)(self, hidden, terms.rotation, first)
        keys, values = past.extend(keys, values, self, terms.rotation)
        hidden = hidden[:, first:]
        if hidden.shape[1]:  # else a reader needs the last keys and values alone
            attend = past.attend or self.backend.attend
            attended = self.attention(drop(query), drop(keys), drop(values), terms, attend)
            hidden = compiled(Layer.residual_block, compiles)(self, hidden, attended)
        return LayerOutput(hidden, self._kept(layer_input))

    def _project(self, hidden: Tensor, rotation: Rotation | None, first: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the layer input (B, L, d), its queries from position `first` on, keys and values, (B, H, x, D)."""
        layer_input = self.memory_input(hidden)
        query, keys, values = self.attention.project(self.attention_input(layer_input), first=first)
        if rotation is not None:
            query = rotation.apply(query)
            keys = rotation.apply(keys)
        return layer_input, query, keys, values

    def _forward_from_context(
        self, hidden: Tensor, past: HiddenMemory, terms: ScoreTerms, layer_input: Tensor | None
    ) -> LayerOutput:
        """Project memory and segment (B, L, d) together. Rows that end in zeros give rows that end in zeros."""
        if layer_input is None:
            layer_input = self.memory_input(hidden)
        attended = self._attend_to_context(layer_input, past, terms)
        hidden = self.residual_block(hidden, attended)
        return LayerOutput(hidden, self._kept(layer_input), next_input=self.memory_input(hidden))

    def _attend_to_context(self, layer_input: Tensor, past: HiddenMemory, terms: ScoreTerms) -> Tensor:
        """Attend from a segment (B, L, d) to memory and segment, with one product for the keys and values of both."""
        attend = self.backend.attend_context
        assert attend is not None
        attention = self.attention
        heads = attention.n_heads
        d_head = attention.d_head
        segment = self.attention_input(layer_input)
        width = segment.shape[-1]
        if past.length:
            remembered = self.attention_input(pad_to(past.states, width))
            w_query = joined_heads([attention.w_q], d_head, width)
            w_key_value = joined_heads([attention.w_k_content, attention.w_v], d_head, width)
            queries, keys_values = ContextProducts.apply(remembered, segment, w_query, w_key_value)
        else:
            weight = joined_heads([attention.w_q, attention.w_k_content, attention.w_v], d_head, width)
            queries, keys_values = F.linear(segment, weight).tensor_split([len(weight) // 3], dim=-1)
        query = split_heads(self.projection_dropout(queries), heads)
        key_value = self.projection_dropout(keys_values).unflatten(-1, (2, heads, -1))  # (B, K, 2, H, D)
        attended = attend(query, key_value, terms, width=d_head, dropout=attention.active_dropout)
        by_head = attention.w_o.weight.unflatten(1, (heads, -1))  # (d, H, D)
        w_o = pad_to(by_head, query.shape[3]).flatten(1)
        return F.linear(attended.transpose(1, 2).flatten(2), pad_to(w_o, w_o.shape[1], width))

    def residual_block(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Join the output of attention to the layer input, then the feed-forward sublayer, each with its norm.

        Returns (B, L, d); `attended` is overwritten.
        """
        hidden = self._join(self.dropout, attended, hidden, self.attention_gate)
        if self.pre_norm:
            branch = self.feed_forward(self.ff_norm(hidden))
        else:
            hidden = self.attention_norm(hidden)
            branch = self.feed_forward(hidden)
        if not self.overwrites_feed_forward:
            branch = branch.clone()
        hidden = self._join(self.feed_forward_dropout, branch, hidden, self.feed_forward_gate)
        return hidden if self.pre_norm else self.ff_norm(hidden)

    @staticmethod
    def _join(dropout: Dropout, branch: Tensor, hidden: Tensor, gate: GruGate | None) -> Tensor:
        """Apply dropout to the branch and add the residual (B, L, d), in place if the dtypes match.

        With a gate instead of the sum, the branch goes through a relu first (GTrXL).
        """
        if gate is not None:
            gated: Tensor = gate(hidden, dropout.after_relu(branch))
            return gated
        dropped: Tensor = dropout(branch)
        if dropped.dtype == hidden.dtype:
            return dropped.add_(hidden)
        return dropped + hidden

    def _kept(self, layer_input: Tensor) -> Tensor:
        """Return the layer input as a memory keeps it, (B, L, d): no gradient, no zeros at the end of rows."""
        return layer_input[..., : self.d_model].detach().contiguous()


def rotated(terms: Sequence[ScoreTerms], rotation: Rotation | None) -> Sequence[ScoreTerms]:
    """Return the score terms of each layer with a rotation."""
    if rotation is None:
        return terms
    return [dataclasses.replace(added, rotation=rotation) for added in terms]
