"""One layer of a Transformer-XL, and the memory of section 3.2 that it reads: the hidden states of earlier segments.

A layer is a pure function of a segment, a memory and score terms; only the `Past` of a reader stores what it projects.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, d model width.
"""

import dataclasses
import functools
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txlcli.config.model_settings import TransformerSettings
from txlcli.core.backend import Attend, Rotation, ScoreTerms, aligned
from txlcli.core.kernels.device import cast_for_products, row_multiple
from txlcli.core.model.attention import Attention
from txlcli.core.model.base import Memory
from txlcli.core.model.dropout import Dropout
from txlcli.core.model.linear import Linear
from txlcli.core.model.sublayers import GruGate, make_feed_forward, make_norm


class Past(ABC):
    """Keys and values before a segment that a reader keeps as they were projected, for one layer."""

    attend: Attend | None = None
    """Computes the attention to this past, where its keys are not simply in order; None: as the layer does."""

    @abstractmethod
    def extend(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store the keys and values of a segment, (B, H, L, D) each; return those of past and segment.

        Returns:
            (B, H, K, D) each; the last L positions are the segment's.
        """


class LayerOutput(NamedTuple):
    """Results of one layer for a segment."""

    hidden: Tensor
    """The output (B, L, d), or that of the last `count` positions."""
    kept: Tensor
    """The input, which a memory keeps: SG(h) of section 3.2, (B, L, d), no gradient."""
    slots: Tensor | None = None
    """Compressed positions (B, x, d) that have left the memory, without gradient."""
    loss: Tensor | None = None
    """A loss of the layer's own (0-d), which training adds to its objective."""


@dataclass(frozen=True, kw_only=True)
class HiddenMemory:
    """The memory m of section 3.2: hidden states before a segment, which a layer projects with its current weights."""

    positions: Tensor
    """Layer inputs without gradient, oldest first, (B, M, d)."""
    mem_len: int = 0
    """Positions to keep for the next segment."""
    reread_len: int = 0
    """Final positions of the segment that the next one reads again, so that it does not need them here."""
    seg_len: Tensor | None = None
    """If the segment ends in padding, the number of its other positions that are not read again, 0-d."""
    rotation: Rotation | None = None
    """Of the positions, if the encoding rotates keys."""

    @property
    def states(self) -> Tensor:
        """Hidden states that are projected to keys and values, (B, x, d)."""
        return self.positions

    @property
    def length(self) -> int:
        """Number of these hidden states."""
        return self.positions.shape[1]

    def after(self, output: LayerOutput) -> Memory:
        """Return the memory of this layer after a segment."""
        if self.seg_len is not None:  # a full memory moves by as many positions
            moved = torch.arange(self.mem_len, device=output.kept.device) + self.seg_len
            return [torch.cat([self.positions, output.kept], dim=1).index_select(1, moved)]
        kept = output.kept[:, : max(0, output.kept.shape[1] - self.reread_len)]
        return [update_memory(self.positions, kept, mem_len=self.mem_len)]


class Layer(nn.Module):
    """One layer: attention over past and segment, then feed-forward, each with residual and norm."""

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
        self.attention_gate, self.feed_forward_gate = (GruGate(settings) if gated else None for _ in range(2))
        dropout = functools.partial(Dropout, variational=settings.variational_dropout)
        self.dropout = dropout(settings.dropout)
        """Of the output of attention."""
        self.feed_forward_dropout = dropout(settings.dropout_rate("feed_forward_dropout"))
        self.projection_dropout = dropout(settings.projection_dropout)
        self.project, self.finish = project, finish
        """The parts before and after attention, which a reader compiles: no shape in them depends on the past."""

    def memory_input(self, hidden: Tensor) -> Tensor:
        """Return hidden states (B, x, d) as memory keeps them: in the dtype of products, if nothing else reads them."""
        return hidden if self.pre_norm else cast_for_products(hidden)

    def attention_input(self, hidden: Tensor) -> Tensor:
        """Return the input of the projections to queries, keys and values, from layer inputs (B, x, d)."""
        normed: Tensor = self.attention_norm(hidden) if self.pre_norm else hidden
        return cast_for_products(normed)

    def project_memory(self, memory: HiddenMemory) -> tuple[Tensor, Tensor]:
        """Return keys and values (B, H, M, D) of the hidden states of a memory."""
        keys, values = self.attention.project_keys_values(self.attention_input(memory.states))
        return keys if memory.rotation is None else memory.rotation.apply(keys), values

    def forward(
        self, hidden: Tensor, past: HiddenMemory | Past, terms: ScoreTerms, count: int | None = None
    ) -> LayerOutput:
        """Read one segment (B, L, d) after a past.

        Everything that needs the weights of the layer happens here: with train.parallel = "fsdp" they are there only
        during this call.

        Args:
            hidden: the output of the layer below.
            past: a memory, which is projected, or the keys and values that a reader keeps.
            terms: what the encoding adds to the score.
            count: number of final positions to compute, 0 included; all by default.
        """
        first, terms = 0 if count is None else hidden.shape[1] - count, self.attention.project_distances(terms)
        if self.attention.joins_context and isinstance(past, HiddenMemory) and terms.rotation is None:
            layer_input = self.memory_input(hidden)
            attended = self._attend_to_context(layer_input, past, terms, first=first)
        else:
            layer_input, query, keys, values = self.project(self, hidden, terms.rotation, first)
            attended = self._attend(query, keys, values, past, terms)
        hidden = hidden[:, first:] if first else hidden
        if hidden.shape[1]:
            hidden = self.finish(self, hidden, attended)
        return LayerOutput(hidden, layer_input[..., : self.d_model].detach().contiguous())

    def _attend_to_context(self, layer_input: Tensor, past: HiddenMemory, terms: ScoreTerms, *, first: int) -> Tensor:
        """Attend from a segment (B, L, d), from position `first` on, to past and segment, projected together."""
        segment = self.attention_input(layer_input)
        remembered = self.attention_input(aligned(past.states, segment.shape[-1]))
        context = torch.cat([remembered, segment], dim=1)  # [SG(m) o h] of section 3.2
        multiple = row_multiple(segment.device)
        return self.attention.to_context(segment[:, first:], context, terms, self.projection_dropout, multiple=multiple)

    def _attend(
        self, query: Tensor, keys: Tensor, values: Tensor, past: HiddenMemory | Past, terms: ScoreTerms
    ) -> Tensor:
        """Attend from the queries of a segment (B, H, L, D) to the keys and values of past and segment."""
        if isinstance(past, Past):
            keys, values = past.extend(keys, values)
        elif past.length:  # equals projecting the context
            old_keys, old_values = self.project_memory(past)
            keys, values = torch.cat([old_keys, keys], dim=2), torch.cat([old_values, values], dim=2)
        if not query.shape[2]:
            return query.flatten(2)  # a reader needs the last keys and values alone
        attend, drop = past.attend if isinstance(past, Past) else None, self.projection_dropout
        attended: Tensor = self.attention(drop(query), (drop(keys), drop(values)), terms, attend)
        return attended

    def residual_block(self, hidden: Tensor, attended: Tensor) -> Tensor:
        """Join the output of attention to the layer input, then the feed-forward sublayer, each with its norm.

        Returns (B, L, d); `attended` is overwritten.
        """
        hidden = self._join(self.dropout, attended, hidden, self.attention_gate)
        if not self.pre_norm:
            hidden = self.attention_norm(hidden)
        branch = self.feed_forward(self.ff_norm(hidden) if self.pre_norm else hidden)
        hidden = self._join(self.feed_forward_dropout, branch, hidden, self.feed_forward_gate)
        normed: Tensor = hidden if self.pre_norm else self.ff_norm(hidden)
        return normed

    @staticmethod
    def _join(dropout: Dropout, branch: Tensor, hidden: Tensor, gate: GruGate | None) -> Tensor:
        """Apply dropout to the branch and add the residual (B, L, d), in place if the dtypes match; or gate both."""
        if gate is not None:
            gated: Tensor = gate(hidden, dropout.after_relu(branch))
            return gated
        dropped: Tensor = dropout(branch)
        return dropped.add_(hidden) if dropped.dtype == hidden.dtype else dropped + hidden


def project(
    layer: Layer, hidden: Tensor, rotation: Rotation | None, first: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the input that a memory keeps, (B, L, d), and its queries, keys and values, (B, H, L, D)."""
    layer_input = layer.memory_input(hidden)
    query, keys, values = layer.attention.project(layer.attention_input(layer_input), first=first)
    if rotation is not None:
        query, keys = rotation.apply(query), rotation.apply(keys)
    return layer_input, query, keys, values


def finish(layer: Layer, hidden: Tensor, attended: Tensor) -> Tensor:
    """Return the output of a layer, (B, L, d)."""
    return layer.residual_block(hidden, attended)


def rotated(terms: Sequence[ScoreTerms], rotation: Rotation | None) -> Sequence[ScoreTerms]:
    """Return the score terms of each layer with the rotation of a segment."""
    return terms if rotation is None else [dataclasses.replace(added, rotation=rotation) for added in terms]


def update_memory(memory: Tensor, hidden: Tensor, *, mem_len: int) -> Tensor:
    """Return the last `mem_len` positions of [memory o hidden] (section 3.2).

    Args:
        memory: (B, M, d), M up to mem_len.
        hidden: (B, L, d), what a layer keeps of the segment that was just read, detached.
    Returns:
        (B, min(M + L, mem_len), d).
    """
    if hidden.shape[1] == mem_len:
        return hidden.contiguous()
    if hidden.shape[1] < mem_len:
        forgotten = max(0, memory.shape[1] + hidden.shape[1] - mem_len)  # positions
        return torch.cat([memory[:, forgotten:], hidden], dim=1)
    return hidden[:, hidden.shape[1] - mem_len :].clone()  # a view would keep the whole segment alive
