"""Operations of the softmax normalizer on a block of logits, by PyTorch.

Axes: t tokens and c ids of the block.
"""

import torch
from torch import Tensor


class RowOperations:
    """Operations of the softmax on the rows of a block of logits, (t, c), by PyTorch."""

    spends_logits = False
    """True if `gradient` overwrites the logits."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None

    def accumulate(self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, logit: Tensor) -> None:
        """Add the logits to the log normalizers, and note those of chosen ids in the block.

        Args:
            logits: (t, c).
            chosen: (t,) ids, not only of this block.
            ids: of the columns.
            total: (t,) log normalizers of the blocks before, arbitrary before the first one; overwritten.
            logit: (t,) logits of the chosen ids; overwritten where the id is in the block.
        """
        column, inside = _columns(chosen, ids)
        of_chosen = logits.gather(1, column[:, None])[:, 0].to(logit.dtype)
        logit.copy_(torch.where(inside, of_chosen, logit))
        largest = logits.amax(dim=-1, keepdim=True).to(total.dtype)
        exponentials = torch.sub(logits, largest, out=self._view(logits.shape, total)).exp_()
        of_block = exponentials.sum(dim=-1).log_().add_(largest[:, 0])
        if ids.start > 0:
            of_block = torch.logaddexp(total, of_block)
        total.copy_(of_block)

    def gradient(
        self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, grad_total: Tensor, grad_logit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the gradient of the logits (t, c) in their dtype, and its sums over tokens (c,).

        Args:
            logits: (t, c).
            chosen: (t,) ids, not only of this block.
            ids: of the columns.
            total: (t,) log normalizers of all ids.
            grad_total: (t,) gradient of the log normalizers.
            grad_logit: (t,) gradient of the logits of the chosen ids.
        """
        grad = torch.sub(logits, total[:, None], out=self._view(logits.shape, total))  # (t, c)
        grad.exp_().mul_(grad_total[:, None])
        column, inside = _columns(chosen, ids)
        of_chosen = torch.where(inside, grad_logit, 0.0)
        grad.scatter_add_(1, column[:, None], of_chosen[:, None])
        return grad.to(logits.dtype), grad.sum(dim=0)

    def _view(self, shape: torch.Size, like: Tensor) -> Tensor:
        """Return memory (t, c) with the values of the block before; the first block is the largest."""
        if self._buffer is None or self._buffer.numel() < shape.numel():
            self._buffer = like.new_empty(shape.numel())
        return self._buffer[: shape.numel()].view(shape)


def _columns(chosen: Tensor, ids: slice) -> tuple[Tensor, Tensor]:
    """Return the columns (t,) of ids in a block, and True for ids inside it; the columns of others are arbitrary."""
    column = chosen - ids.start
    inside = (column >= 0) & (chosen < ids.stop)
    return column.clamp(0, ids.stop - ids.start - 1), inside
