"""Attention whose scores know distances (section 3.3): the sublayer, and the ways to compute it.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, d model width, n distances scored, m of them
with a position key.
"""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from txlcli.config.settings import AttentionKind
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.attention_lanes import attend_by_lanes
from txlcli.core.kernels.attention_torch import flex, reference, sdpa
from txlcli.core.kernels.device import cast_for_products, row_multiple
from txlcli.core.kernels.distance_space import Workspace
from txlcli.core.kernels.linear import Linear, Packed, should_pack


@dataclass(frozen=True)
class ScoreTerms:
    """What a layer's attention adds to the content score (a) of 3.3; what is None adds nothing."""

    reach: int
    """Distances 0 .. reach - 1 are seen, no others."""
    position_key: Tensor | None = None
    """(H, m, D), m at most `reach`; row c is distance m - 1 - c, row 0 also all that are farther: gives (b)."""
    content_bias: Tensor | None = None
    """u, (H, D): gives (c)."""
    position_bias: Tensor | None = None
    """v, (H, D): gives (d) against `position_key`."""

    def nearest(self, count: int) -> "ScoreTerms":
        """The same for the `count` nearest distances."""
        key = self.position_key
        if key is not None:
            key = key[:, max(0, key.shape[1] - count) :]
        return dataclasses.replace(self, reach=count, position_key=key)

    def every_position_key(self) -> Tensor | None:
        """(H, n, D), one row for each distance."""
        key = self.position_key
        if key is None or key.shape[1] == self.reach:
            return key
        return torch.cat([key[:, :1].expand(-1, self.reach - key.shape[1], -1), key], dim=1)

    def without_repetition(self, max_distance: int | None, seg_len: int) -> "ScoreTerms":
        """The same for segments up to L, without most of the equal rows of distances beyond `max_distance`.

        L of them stay: some queries of a segment find a key that far, others find it less far.
        """
        key = self.position_key
        if key is None or max_distance is None:
            return self
        return dataclasses.replace(self, position_key=key[:, max(0, self.reach - max_distance - seg_len) :])


def attend(
    inputs: AttentionInputs,
    *,
    dropout: float = 0.0,
    recompute: bool = False,
    workspace: Workspace | None = None,
    kind: AttentionKind = "auto",
) -> Tensor:
    """Weigh values by softmax((a) + (b) + (c) + (d)) over the keys that each query may see (section 3.3).

    Args:
        inputs: queries, keys, values.
        dropout: share of the probabilities dropped.
        recompute: keep no probabilities for the backward pass, which computes them again; "auto" only.
        workspace: memory that was used for other layers and will be used again; one of its own by default.
        kind: how it is computed; all kinds give the same. "flex" drops nothing.
    Returns:
        (B, H, L, D).
    """
    width = inputs.query.shape[3]
    inputs = inputs.widened(row_multiple(inputs.key.device))
    with torch.autocast(inputs.key.device.type, enabled=False):
        if kind == "auto":
            out = attend_by_lanes(inputs, dropout=dropout, recompute=recompute, workspace=workspace or Workspace())
        elif kind == "flex":
            out = flex(inputs)
        else:
            out = {"reference": reference, "sdpa": sdpa}[kind](inputs, dropout=dropout)
    return out[..., :width]


class Attention(nn.Module):
    """The multi-head attention sublayer, without its residual and norm (section 3.3).

    The keys' projections are separate from the queries', so that a decoder can keep projected keys and values. What the
    score knows of positions comes from outside, as ScoreTerms.
    """

    def __init__(
        self,
        *,
        d_model: int,
        n_heads: int,
        d_head: int,
        attention_dropout: float,
        workspace: Workspace | None = None,
    ) -> None:
        super().__init__()
        self.workspace = workspace or Workspace()
        self.n_heads = n_heads
        self.scale = d_head**-0.5
        self.attention_dropout = attention_dropout
        self.recompute = False
        """Whether the backward pass computes probabilities again, instead of keeping them."""
        self.kind: AttentionKind = "auto"
        """How it is computed."""
        self.w_q = Linear(d_model, n_heads * d_head, bias=False)
        self.w_k_content = Linear(d_model, n_heads * d_head, bias=False)
        self.w_v = Linear(d_model, n_heads * d_head, bias=False)
        self.w_o = Linear(n_heads * d_head, d_model, bias=False)
        self.merged: Packed | None = None
        """The matrices of queries, keys and values in one, (3 * H * D, d), for weights that no longer change."""

    def pack(self, dtype: torch.dtype) -> None:
        """`LanguageModel.pack` for this sublayer."""
        matrices = (self.w_q, self.w_k_content, self.w_v)
        if should_pack(self.w_q.weight, dtype):
            self.merged = Packed.of(torch.cat([matrix.weight for matrix in matrices]).to(dtype))
        for matrix in matrices:  # they still project what only some positions are asked of
            matrix.cast(dtype)
        self.w_o.pack(dtype)

    def project(self, segment: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """What `project_queries` and `project_keys` give of the segment (B, L, d)."""
        if self.merged is None:
            segment = cast_for_products(segment)
            return self.project_queries(segment), self.project_keys(segment)
        query, key, value = self.merged.multiply(segment).chunk(3, dim=-1)
        return split_heads(query.mul_(self.scale), self.n_heads), (
            split_heads(key, self.n_heads),
            split_heads(value, self.n_heads),
        )

    def project_keys(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H, K, D) of the context (B, K, d)."""
        context = cast_for_products(context)
        return split_heads(self.w_k_content(context), self.n_heads), split_heads(self.w_v(context), self.n_heads)

    def project_queries(self, segment: Tensor) -> Tensor:
        """Scaled queries (B, H, L, D) of the segment (B, L, d)."""
        return split_heads(self.w_q(segment).mul_(self.scale), self.n_heads)

    def forward(self, query: Tensor, keys: tuple[Tensor, Tensor], terms: ScoreTerms) -> Tensor:
        """Attend from scaled queries (B, H, L, D) to keys and values (B, H, K, D); gives (B, L, d).

        Args:
            query: what `project_queries` gave for the segment.
            keys: what `project_keys` gave for memory and segment.
            terms: what else the score is made of.
        """
        out = attend(
            self.inputs(query, keys, terms),
            dropout=self.attention_dropout if self.training else 0.0,
            recompute=self.recompute,
            workspace=self.workspace,
            kind=self.kind,
        )
        return self.output(out)

    def inputs(self, query: Tensor, keys: tuple[Tensor, Tensor], terms: ScoreTerms) -> AttentionInputs:
        """The arguments of `forward` as those of `attend`."""
        position_key = terms.position_key
        return AttentionInputs(
            query,
            *keys,
            self._scaled(terms.content_bias, query),
            self._scaled(terms.position_bias, query),
            None if position_key is None else position_key.to(query.dtype),
            terms.reach,
        )

    def output(self, attended: Tensor) -> Tensor:
        """(B, L, d) of what `attend` gives, (B, H, L, D)."""
        projected: Tensor = self.w_o(attended.transpose(1, 2).flatten(2))
        return projected

    def _scaled(self, bias: Tensor | None, query: Tensor) -> Tensor | None:
        """A bias (H, D) as what is added to scaled queries, (H, 1, D)."""
        return None if bias is None else (bias * self.scale).to(query.dtype)[:, None]


def split_heads(projected: Tensor, n_heads: int) -> Tensor:
    """(..., x, H * D) -> (..., H, x, D)."""
    return projected.unflatten(-1, (n_heads, -1)).transpose(-3, -2)
