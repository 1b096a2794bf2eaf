"""The recurrence of a QRNN over a segment, without a loop over time.

Axes: B lanes, L segment, W width of a layer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gated_sum(keep: Tensor, new: Tensor, before: Tensor) -> Tensor:
    """c_t = keep_t * c_(t-1) + new_t for all t of a segment, without a loop over them.

    Neighbours are joined in pairs, pairs in pairs of pairs: 2 log2 L operations on whole tensors, about twice the
    multiplications of the loop. Nothing is divided, so a gate that closes (keep = 0) is exact.

    Args:
        keep: (B, L, W), from 0 to 1.
        new: (B, L, W).
        before: c_0 (B, W), what the segment before left.
    Returns:
        c (B, L, W).
    """
    sums: Tensor = _GatedSum.apply(keep, new, before)
    return sums


class _GatedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keep: Tensor, new: Tensor, before: Tensor) -> Tensor:
        started = torch.cat([torch.addcmul(new[:, 0], keep[:, 0], before)[:, None], new[:, 1:]], dim=1)
        sums = _scan(keep, started)
        ctx.save_for_backward(keep, sums, before)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep, sums, before = ctx.saved_tensors
        # The same sum from the end: what c_t adds to the loss is grad_t + keep_(t+1) * what c_(t+1) adds.
        added = _scan(torch.cat([keep[:, :1], keep[:, 1:].flip(1)], dim=1), grad.flip(1)).flip(1)
        earlier = torch.cat([before[:, None], sums[:, :-1]], dim=1)
        return added * earlier, added, added[:, 0] * keep[:, 0]


def _scan(keep: Tensor, new: Tensor) -> Tensor:
    """c_t = keep_t * c_(t-1) + new_t with c_1 = new_1; the first of `keep` means nothing."""
    length = keep.shape[1]
    if length == 1:
        return new
    paired = slice(0, length - 1, 2)  # 1, 3, ...; each with the one after it, while an odd last one stays alone
    # c at the second of each pair is a gated sum over pairs.
    seconds = _scan(
        keep[:, 1::2] * keep[:, paired], torch.addcmul(new[:, 1::2], keep[:, 1::2], new[:, paired])
    )  # (B, L // 2, W)
    sums = torch.empty_like(new)
    sums[:, 0] = new[:, 0]
    sums[:, 1::2] = seconds
    sums[:, 2::2] = torch.addcmul(new[:, 2::2], keep[:, 2::2], seconds[:, : (length - 1) // 2])
    return sums
