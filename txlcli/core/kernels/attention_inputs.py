"""The arguments of attention, laid out for the fast implementations: scaled, without biases by distance, padded."""

from typing import NamedTuple

from torch import Tensor

from txlcli.core.backend import ScoreTerms, aligned, nearest_rows, repeated
from txlcli.core.kernels.device import row_multiple


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


class AttentionInputs(NamedTuple):
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
    distance_bias: Tensor | None
    """Added to the score of each distance, (H, 1, n); there is a position key for each of them, too."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> "AttentionInputs":
        """Return the arguments of `core.model.attention.attend` in this layout.

        Zeros are appended to the head width D of all of them, up to a multiple: the scores do not change.
        """
        scale, width = query.shape[3] ** -0.5, max(query.shape[3], key.shape[3])  # a decoder may have padded keys
        width += -width % row_multiple(key.device)
        position_key, distance_bias = terms.position_key, terms.distance_bias
        if distance_bias is not None:
            distance_bias = distance_bias.to(query.dtype)[:, None]
            position_key = query.new_zeros(query.shape[1], 1, width) if position_key is None else position_key
            position_key = nearest_rows(position_key, terms.reach)
        biases = (terms.content_bias, terms.position_bias)
        scaled = (None if bias is None else (bias * scale)[:, None] for bias in biases)
        tensors = (query * scale, key, value, *scaled, position_key)
        padded = (None if tensor is None else aligned(tensor.to(query.dtype), width) for tensor in tensors)
        return cls(terms.reach, *padded, distance_bias)  # type: ignore[arg-type,call-arg]

    @property
    def need_gradient(self) -> bool:
        """True if any of the tensors requires a gradient."""
        return any(tensor is not None and tensor.requires_grad for tensor in self[1:])
