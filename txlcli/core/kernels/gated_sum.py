"""The recurrence of a QRNN over a segment, as a parallel scan instead of a loop over time.

Axes: B batch, L segment, W width of a layer.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def gated_sum(keep: Tensor, new: Tensor, before: Tensor) -> Tensor:
    """Return c_t = keep_t * c_(t-1) + new_t for all t of a segment.

    Neighbours are combined in pairs, then pairs of pairs: 2 log2 L operations on whole tensors, with about twice the
    multiplications of the loop. No division is used, so a closed gate (keep = 0) is exact.

    Args:
        keep: (B, L, W), from 0 to 1.
        new: (B, L, W).
        before: c_0 (B, W), the last c of the segment before.
    Returns:
        c (B, L, W).
    """
    sums: Tensor = _GatedSum.apply(keep, new, before)
    return sums


class _GatedSum(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, keep: Tensor, new: Tensor, before: Tensor) -> Tensor:
        first = torch.addcmul(new[:, 0], keep[:, 0], before)[:, None]
        sums = _scan(keep, torch.cat([first, new[:, 1:]], dim=1))
        ctx.save_for_backward(keep, sums, before)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        keep, sums, before = ctx.saved_tensors
        # A gated sum from the end: the gradient of c_t is grad_t + keep_(t+1) * the gradient of c_(t+1).
        keep_after = torch.cat([keep[:, :1], keep[:, 1:].flip(1)], dim=1)
        grad_sums = _scan(keep_after, grad.flip(1)).flip(1)
        earlier = torch.cat([before[:, None], sums[:, :-1]], dim=1)  # c_(t-1)
        grad_keep = grad_sums * earlier
        grad_before = grad_sums[:, 0] * keep[:, 0]
        return grad_keep, grad_sums, grad_before


def _scan(keep: Tensor, new: Tensor) -> Tensor:
    """Return c_t = keep_t * c_(t-1) + new_t with c_1 = new_1; the first entry of `keep` is ignored."""
    length = keep.shape[1]
    if length == 1:
        return new
    first = slice(0, length - 1, 2)  # positions 1, 3, ..., each with its successor; an odd last one has no partner
    second = slice(1, None, 2)  # 2, 4, ...
    # The c at the second of each pair is a gated sum over pairs.
    keep_of_pair = keep[:, second] * keep[:, first]  # (B, L // 2, W)
    new_of_pair = torch.addcmul(new[:, second], keep[:, second], new[:, first])
    sums_of_pairs = _scan(keep_of_pair, new_of_pair)
    # The c at the first of each pair follows the c at the second of the pair before.
    later_first = slice(2, None, 2)  # 3, 5, ...
    before = sums_of_pairs[:, : (length - 1) // 2]
    sums = torch.empty_like(new)
    sums[:, 0] = new[:, 0]
    sums[:, second] = sums_of_pairs
    sums[:, later_first] = torch.addcmul(new[:, later_first], keep[:, later_first], before)
    return sums
