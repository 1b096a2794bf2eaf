"""Attention of single tokens over a buffer of fixed size, as a CUDA graph can repeat it.

A graph repeats the same kernels on the same memory. So the slot of the token and how far it sees are numbers on the
device, and its query is scored against the whole buffer: slots without a key, or with one that is too far away, are
masked.

Axes: B batch, C capacity of the buffer, H heads, D head width, m distances with a position key.
"""

import math
from typing import Any

import torch
from torch import Tensor

from txlcli.core.kernels.attention_inputs import AttentionInputs


class SlotAttention:
    """`core.model.attention.attend` for one query per sequence, against all slots of a buffer.

    Args:
        distance: (C,) distance of each slot from the query, negative where no key stands yet.
        reach: (1,) slots at this distance or more are not seen.
    """

    def __init__(self, distance: Tensor, reach: Tensor) -> None:
        self._distance = distance
        self._unseen = torch.zeros_like(distance, dtype=torch.float32)
        self._unseen.masked_fill_((distance < 0) | (distance >= reach), -math.inf)

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float = 0.0, **terms: Any) -> Tensor:
        """Return (B, H, 1, D); `reach` is that of the constructor, and nothing is dropped."""
        width = query.shape[3]
        inputs = AttentionInputs.of(query, key[..., :width], value[..., :width], **terms)
        with torch.autocast(key.device.type, enabled=False):
            scores = inputs.query_content @ inputs.key.mT + self._unseen  # (B, H, 1, C), float32 at least
            if inputs.position_key is not None:
                by_distance = inputs.query_position @ inputs.position_key.mT  # (B, H, 1, m)
                farthest = by_distance.shape[3] - 1  # row c is distance m - 1 - c, row 0 also all that are farther
                rows = (farthest - self._distance).clamp(0, farthest)
                scores = scores + by_distance.index_select(3, rows)
            out: Tensor = scores.softmax(dim=-1).to(inputs.value.dtype) @ inputs.value
            return out[..., :width]
