"""The arguments of attention, laid out for the fast implementations: scaled, without biases by distance, padded."""

from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.core.backend import ScoreTerms, nearest_rows, pad_to, repeat_for_lanes
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
    rows = pad_to(query * scale, width)
    return _biased(rows, content_bias, scale), _biased(rows, position_bias, scale)


def _biased(rows: Tensor, bias: Tensor | None, scale: float) -> Tensor:
    """Return rows (B, L, H, D), scaled before, plus a bias (H, D) that is scaled and padded here."""
    if bias is None:
        return rows
    padded = pad_to(bias * scale, rows.shape[-1])
    return (rows + repeat_for_lanes(padded, rows)).to(rows.dtype)


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
    """By distance as in `ScoreTerms`, (H, m, D); None without relative positions. With gradients or a distance bias, m
    is n."""
    distance_bias: Tensor | None
    """Added to the score, by distance, (H, 1, n)."""
    unseen: Tensor | None
    """True for keys that a query does not see, (B, 1, L, K); None if it sees the n nearest."""

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> "AttentionInputs":
        """Return the arguments of `core.model.attention.attend` in this layout.

        Zeros are appended to the head width D of all of them, up to a multiple: the scores do not change.
        """
        dtype = query.dtype
        scale = query.shape[3] ** -0.5
        width = max(query.shape[3], key.shape[3])  # a decoder may have padded keys
        width += -width % row_multiple(key.device)
        position_key = terms.position_key
        distance_bias = terms.distance_bias
        if distance_bias is not None:
            distance_bias = distance_bias.to(dtype)[:, None]
            if position_key is None:
                position_key = query.new_zeros(query.shape[1], 1, width)
        if position_key is not None:
            position_key = pad_to(position_key.to(dtype), width)
            if distance_bias is not None or torch.is_grad_enabled():
                position_key = nearest_rows(position_key, terms.reach)
        return cls(
            reach=terms.reach,
            query=pad_to(query * scale, width),
            key=pad_to(key.to(dtype), width),
            value=pad_to(value.to(dtype), width),
            content_bias=_scaled_bias(terms.content_bias, scale, query, width),
            position_bias=_scaled_bias(terms.position_bias, scale, query, width),
            position_key=position_key,
            distance_bias=distance_bias,
            unseen=terms.unseen(key.shape[2]),
        )

    @property
    def need_gradient(self) -> bool:
        """True if any of the tensors requires a gradient."""
        return any(tensor is not None and tensor.requires_grad for tensor in self[1:])


def _scaled_bias(bias: Tensor | None, scale: float, query: Tensor, width: int) -> Tensor | None:
    """Return a bias (H, D) scaled and padded, in the dtype of the queries: (H, 1, width)."""
    if bias is None:
        return None
    return pad_to((bias * scale)[:, None].to(query.dtype), width)
