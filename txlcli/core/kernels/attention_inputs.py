"""The arguments of attention, laid out for the fast implementations: scaled, without biases by distance, padded."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from txlcli.core.backend import ScoreTerms, aligned, nearest_rows, repeated
from txlcli.core.kernels.device import row_multiple

ScaledQueries = Callable[[Tensor, Tensor | None, Tensor | None, float, int], tuple[Tensor, Tensor]]
"""`scaled_queries`, or the same compiled."""


def scaled_queries(
    query: Tensor, content_bias: Tensor | None, position_bias: Tensor | None, scale: float, width: int
) -> tuple[Tensor, Tensor]:
    """Return queries that give (a) + (c) against keys, and (b) + (d) against position keys, (B, L, H, width).

    Args:
        query: (B, L, H, D).
        content_bias: u, (H, D).
        position_bias: v, (H, D).
        scale: of the scores.
        width: D, padded.
    """
    rows = aligned(query * scale, width)
    content, position = (
        rows if bias is None else (rows + repeated(aligned(bias * scale, width), rows)).to(query.dtype)
        for bias in (content_bias, position_bias)
    )
    return content, position


@dataclass(frozen=True)
class AttentionInputs:
    """Queries, keys and values of one layer, and the terms of section 3.3.

    Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a
    position key.
    """

    reach: int
    """n; keys at distance n or more are not seen."""
    query: Tensor
    """(B, H, L, D), scaled: gives (a) against `key` and (b) against `position_key`."""
    key: Tensor
    """(B, H, K, D); the last L keys are the positions of the queries."""
    value: Tensor
    """(B, H, K, D)."""
    content_bias: Tensor | None
    """u, scaled, (H, 1, D): gives (c) against `key`."""
    position_bias: Tensor | None
    """v, scaled, (H, 1, D): gives (d) against `position_key`."""
    position_key: Tensor | None
    """(H, m, D), m at most n; row c is distance m - 1 - c, and the first row also stands for every larger distance;
    None without relative positions."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> "AttentionInputs":
        """Return the arguments of `core.model.attention.attend` in this layout.

        A bias by distance becomes one more column of the position key, against which every query has a one.
        """
        scale = query.shape[3] ** -0.5

        def scaled(bias: Tensor | None) -> Tensor | None:  # (H, D) -> (H, 1, D)
            return None if bias is None else (bias * scale).to(query.dtype)[:, None]

        position_key = None if terms.position_key is None else terms.position_key.to(query.dtype)
        biases = scaled(terms.content_bias), scaled(terms.position_bias)
        inputs = cls(terms.reach, query * scale, key, value, *biases, position_key)
        if terms.distance_bias is not None:
            inputs = inputs._with_distance_bias(terms.distance_bias.to(query.dtype))
        return inputs.widened(row_multiple(key.device))

    def _with_distance_bias(self, distance_bias: Tensor) -> "AttentionInputs":
        """Add a column to each row: b of the distance in the position key, 1 in the queries' position bias."""
        query, key, value = (F.pad(tensor, (0, 1)) for tensor in (self.query, self.key, self.value))
        heads, width = self.query.shape[1], self.query.shape[3]
        content_bias = None if self.content_bias is None else F.pad(self.content_bias, (0, 1))
        position_bias = query.new_zeros(heads, 1, width) if self.position_bias is None else self.position_bias
        position_key = query.new_zeros(heads, 1, width) if self.position_key is None else self.position_key
        position_key = nearest_rows(position_key, self.reach)
        position_key = torch.cat([position_key, distance_bias[..., None]], dim=-1)  # (H, n, D + 1)
        position_bias = F.pad(position_bias, (0, 1), value=1.0)
        return AttentionInputs(self.reach, query, key, value, content_bias, position_bias, position_key)

    @property
    def seg_len(self) -> int:
        """L."""
        return self.query.shape[2]

    @property
    def key_len(self) -> int:
        """K."""
        return self.key.shape[2]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
        """All tensors, in the order of the fields."""
        return self.query, self.key, self.value, self.content_bias, self.position_bias, self.position_key

    def widened(self, multiple: int) -> "AttentionInputs":
        """Zero-pad the head width D to one width, a multiple; the scores do not change."""
        width = max(self.query.shape[-1], self.key.shape[-1])  # the keys of a decoder may be padded already
        width += -width % multiple
        tensors = {name: aligned(term, width) for name, term in vars(self).items() if isinstance(term, Tensor)}
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]

    def with_all_position_keys(self) -> "AttentionInputs":
        """Repeat the position key of the farthest distances, so that all n distances have one."""
        if self.position_key is None:
            return self
        return dataclasses.replace(self, position_key=nearest_rows(self.position_key, self.reach))

    @property
    def need_gradient(self) -> bool:
        """True if any of the tensors requires a gradient."""
        return any(tensor is not None and tensor.requires_grad for tensor in self.tensors)
