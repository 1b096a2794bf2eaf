"""Attention of single tokens over a buffer of fixed size, as a CUDA graph can repeat it.

A graph repeats the same kernels on the same memory. So the slot of the token and how far it sees are numbers on the
device, and its query is scored against the whole buffer: slots without a key, or with one that is too far away, are
masked.

There are as few kernels as possible, since a single token gives none of them much work: two of Triton. Without it, what
depends on neither layer nor query is computed once for all layers, products scale and add, and the mask is a column of
the position score.

Axes: B batch, C capacity of the buffer, H heads, D head width, m distances with a position key.
"""

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.core.backend import ScoreTerms, nearest_rows
from txlcli.core.kernels.compilation import runs_triton
from txlcli.core.kernels.device import row_multiple


class _DistanceScores(NamedTuple):
    """Memory for the position scores of a layer, which the next layer overwrites."""

    scores: Tensor
    """(H, B, m or wider); column m holds -inf."""
    columns: Tensor
    """(C,) column of each slot: that of its distance, or m if the query does not see it."""


class SlotAttention:
    """`core.model.attention.attend` for one query per sequence, against all slots of a buffer, without gradients.

    Args:
        distance: (C,) distance of each slot from the query, negative where no key stands yet.
        reach: (1,) slots at this distance or more are not seen.
    """

    def __init__(self, distance: Tensor, reach: Tensor) -> None:
        self._distance, self._reach = distance, reach
        self._mask: Tensor | None = None
        self._by_distance: dict[tuple[int, int, int], _DistanceScores] = {}

    def __call__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        terms: ScoreTerms,
        *,
        dropout: float = 0.0,
    ) -> Tensor:
        """Return (B, H, 1, D); the number of distances is that of the constructor, and nothing is dropped."""
        batch_size, heads, _, width = query.shape
        if runs_triton(query.device, query.dtype, width):
            return self._by_triton(query, key, value, terms)
        keys, values = (tensor[..., :width].flatten(0, 1) for tensor in (key, value))  # (B * H, C, D)
        with torch.autocast(key.device.type, enabled=False):
            by_position = self._position_scores(query, terms)
            rows = _plus(query, terms.content_bias).flatten(0, 1)
            scores = torch.baddbmm(by_position, rows, keys.mT, alpha=width**-0.5)
            attended = torch.bmm(scores.softmax(dim=-1), values)  # (B * H, 1, D)
        return attended.unflatten(0, (batch_size, heads))

    def _by_triton(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> Tensor:
        from txlcli.core.kernels.attention_triton import attend_token  # noqa: PLC0415 - PyTorch for CPUs has no Triton

        given = (terms.position_key, terms.content_bias, terms.position_bias, terms.distance_bias)
        added = (None if tensor is None else tensor.contiguous() for tensor in given)
        rows, keys, values = (tensor.transpose(1, 2) for tensor in (query, key, value))
        rows = rows if rows.stride()[2:] == (query.shape[3], 1) else rows.contiguous()
        attended = attend_token(rows, keys, values, *added, self._distance, self._reach, 0)
        return attended.transpose(1, 2)

    @functools.cached_property
    def _unseen(self) -> Tensor:
        """(C,) True for slots that the query does not see."""
        return (self._distance < 0) | (self._distance >= self._reach)

    def _position_scores(self, query: Tensor, terms: ScoreTerms) -> Tensor:
        """Return the scaled scores (b) + (d) of all slots, (B * H, 1, C), -inf where a slot is not seen."""
        batch_size, heads, _, width = query.shape
        position_key, distance_bias = terms.position_key, terms.distance_bias
        by_distance = distance_bias if position_key is None else position_key
        if by_distance is None:
            return self._mask_like(query).expand(batch_size * heads, 1, -1)
        count = by_distance.shape[1] if distance_bias is None else distance_bias.shape[1]  # m
        found = self._distance_scores(batch_size, heads, count, like=query)
        scores = found.scores[..., :count]  # (H, B, m)
        given = None if distance_bias is None else distance_bias[:, None].to(query.dtype)  # (H, 1, m)
        if position_key is not None:
            rows = _plus(query, terms.position_bias)[:, :, 0].transpose(0, 1)  # (H, B, D)
            columns = nearest_rows(position_key, count).to(query.dtype).mT  # (H, D, m)
            beta, first = (0, scores) if given is None else (1, given.expand_as(scores))
            torch.baddbmm(first, rows, columns, beta=beta, alpha=width**-0.5, out=scores)
        elif given is not None:
            scores.copy_(given)
        return found.scores.transpose(0, 1).index_select(2, found.columns).view(batch_size * heads, 1, -1)

    def _distance_scores(self, batch_size: int, heads: int, count: int, *, like: Tensor) -> _DistanceScores:
        """Return memory for the scores of m distances, the same for all layers."""
        sizes = (batch_size, heads, count)
        if sizes not in self._by_distance:
            multiple = row_multiple(like.device)
            width = -(-(count + 1) // multiple) * multiple
            # Column c is distance m - 1 - c, column 0 also all that are farther.
            columns = (count - 1 - self._distance).clamp(0, count - 1).masked_fill(self._unseen, count)
            scores = like.new_full((heads, batch_size, width), -math.inf)
            self._by_distance[sizes] = _DistanceScores(scores, columns)
        return self._by_distance[sizes]

    def _mask_like(self, query: Tensor) -> Tensor:
        if self._mask is None:
            self._mask = query.new_zeros(len(self._unseen)).masked_fill(self._unseen, -math.inf)
        return self._mask


def _plus(query: Tensor, bias: Tensor | None) -> Tensor:
    """Add a bias (H, D) to every query (B, H, 1, D)."""
    return query if bias is None else query + bias.to(query.dtype)[:, None]
