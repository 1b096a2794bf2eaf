"""Operations of the softmax on the logits of some tokens, by PyTorch.

Axes: t tokens and n ids.
"""

import torch
from torch import Tensor


class RowOperations:
    """Operations of the softmax on the rows of logits (t, n), by PyTorch."""

    def losses(
        self, logits: Tensor, chosen: Tensor, total: Tensor, weights: Tensor | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor] | None]:
        """Return the cross entropy of each token, (t,), and gradients of its weighted sum; the logits are overwritten.

        Args:
            logits: (t, n).
            chosen: (t,) ids of the targets; -1, or any other id without a logit, for a logit of 0.
            total: (t,) log normalizers of other logits; those of all logits afterwards.
            weights: (t,) of the tokens; None, if no gradient is needed.
        Returns:
            The losses, and the gradients of the logits (t, n) in their dtype, and their sums over tokens (n,).
        """
        inside = (chosen >= 0) & (chosen < logits.shape[1])
        column = torch.where(inside, chosen, 0)[:, None]
        of_chosen = torch.where(inside, logits.gather(1, column)[:, 0], 0.0).to(total.dtype)
        largest = logits.amax(dim=-1, keepdim=True).to(total.dtype)
        exponentials = torch.sub(logits, largest, out=logits if logits.dtype == total.dtype else None).exp_()
        torch.logaddexp(total, exponentials.sum(dim=-1).log_().add_(largest[:, 0]), out=total)
        losses = total - of_chosen
        if weights is None:
            return losses, None
        grad = exponentials.mul_(weights[:, None] * (largest - total[:, None]).exp_())
        grad.scatter_add_(1, column, torch.where(inside, -weights, 0.0)[:, None])
        return losses, (grad.to(logits.dtype), grad.sum(dim=0))
