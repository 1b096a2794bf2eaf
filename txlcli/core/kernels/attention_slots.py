"""Attention of single tokens over a buffer of fixed size, as a CUDA graph can repeat it.

A graph repeats the same kernels on the same memory. So the slot of the token and how far it sees are numbers on the
device, and its query is scored against the whole buffer: slots without a key, or with one that is too far away, are
masked.

Axes: B batch, C capacity of the buffer, H heads, D head width, m distances with a position key.
"""

import functools
import math

import torch
from torch import Tensor

from txlcli.core.backend import ScoreTerms, at_distance
from txlcli.core.kernels.attention_inputs import scaled_queries
from txlcli.core.kernels.compilation import runs_triton


class SlotAttention:
    """`core.model.attention.attend` for one query per sequence, against all slots of a buffer, without gradients.

    Args:
        distance: (C,) distance of each slot from the query, negative where there is no key yet.
        reach: (1,) slots at this distance or more are not seen.
    """

    def __init__(self, distance: Tensor, reach: Tensor) -> None:
        self._distance = distance
        self._reach = reach

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, 1, D); the number of distances is that of the constructor, and nothing is dropped."""
        width = query.shape[3]
        if runs_triton(query.device, query.dtype, width):
            return self._by_triton(query, key, value, terms)
        with torch.autocast(key.device.type, enabled=False):
            rows = query.transpose(1, 2)  # (B, 1, H, D)
            content, position = scaled_queries(rows, terms.content_bias, terms.position_bias, width**-0.5, width)
            score = content.transpose(1, 2) @ key[..., :width].mT  # (a) + (c): (B, H, 1, C)
            if terms.position_key is not None:
                position_key = terms.position_key.to(query.dtype)
                by_distance = position.transpose(1, 2) @ position_key.mT  # (b) + (d): (B, H, 1, m)
                score = score + at_distance(by_distance, self._distance, dim=-1)
            if terms.distance_bias is not None:
                bias = at_distance(terms.distance_bias, self._distance, dim=-1)  # (H, C)
                score = score + bias[:, None].to(query.dtype)
            probability = score.masked_fill(self._unseen, -math.inf).softmax(dim=-1)
            return probability @ value[..., :width]

    def _by_triton(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms) -> Tensor:
        from txlcli.core.kernels.attention_triton import attend_token  # noqa: PLC0415 - PyTorch for CPUs has no Triton

        rows = query.transpose(1, 2)
        if rows.stride()[2:] != (query.shape[3], 1):
            rows = rows.contiguous()
        attended = attend_token(
            rows,
            key.transpose(1, 2),
            value.transpose(1, 2),
            _contiguous(terms.position_key),
            _contiguous(terms.content_bias),
            _contiguous(terms.position_bias),
            _contiguous(terms.distance_bias),
            self._distance,
            self._reach,
            0,
        )
        return attended.transpose(1, 2)

    @functools.cached_property
    def _unseen(self) -> Tensor:
        """(C,) True for slots that the query does not see."""
        return (self._distance < 0) | (self._distance >= self._reach)


def _contiguous(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.contiguous()
