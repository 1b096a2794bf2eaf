"""Cross entropy over many ids, without the logits of all tokens in memory.

Logits are computed for some tokens at a time. In training, the gradient of the sum of all losses is computed with them,
so that no logits are kept: the backward pass only multiplies the gradients by a number. The operations on logits have
two implementations: `row_losses` by PyTorch, and `normalizer_triton.row_losses` by kernels.

Axes: T tokens, t of them at a time, w width, n ids.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.kernels.compilation import runs_triton
from txlcli.core.kernels.device import autocast_dtype
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.modes import memory_is_unlimited
from txlcli.core.kernels.private import foreach


@dataclass(frozen=True, kw_only=True)
class PartSize:
    """Limits on the logits that are in memory at once."""

    cpu_bytes: int = 16 << 20
    """Bytes of these logits on a CPU, counted in fp32: they should stay in its cache."""
    gpu_bytes: int = 1 << 30
    """Bytes of these logits on a GPU, counted in fp32."""
    min_tokens: int = 128
    """Tokens whose logits may take more: a product of fewer would read the table too often."""

    def parts(self, hidden: Tensor, ids: int) -> list[slice]:
        """Return the tokens of each part, of hidden (T, w) and n ids."""
        size = self.cpu_bytes if hidden.device.type == "cpu" else self.gpu_bytes
        count = max(self.min_tokens, size // (4 * ids))
        tokens = len(hidden)
        return [slice(first, min(first + count, tokens)) for first in range(0, tokens, count)]


DEFAULT_SIZE = PartSize()
ALL_TOKENS = PartSize(min_tokens=1 << 60)
"""For tensors without data: fewer operations."""


class SpareGradient:
    """Memory of a large gradient, reused by the next step: the system would clear new memory first, page by page."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def acquire(self, like: Tensor, dtype: torch.dtype) -> Tensor:
        """Return uninitialized memory for the gradient of this tensor."""
        spare = self._tensor
        self._tensor = None
        if spare is not None and (spare.shape, spare.dtype, spare.device) == (like.shape, dtype, like.device):
            return spare
        return torch.empty_like(like, dtype=dtype)

    def release(self, gradient: Tensor | None) -> None:
        """Keep the memory of a gradient that is no longer in use."""
        self._tensor = gradient

    def __deepcopy__(self, memo: object) -> "SpareGradient":
        """A copy of a model keeps no memory."""
        return SpareGradient()


RowLosses = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]]
"""`row_losses`, or another function that does the same."""
Gradients = tuple[Tensor, Tensor, Tensor, Tensor | None]
"""Of hidden states (T, w), a table (n, w), its bias (n,), and log normalizers of other logits (T,)."""


def token_losses(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    chosen: Tensor,
    *,
    others: Tensor | None = None,
    spare: SpareGradient,
    size: PartSize | None = None,
) -> Tensor:
    """Return the cross entropy of each target, (T,), float32 at least; a backward pass computes the logits again.

    The logits (T, n) are `hidden @ table.mT + bias`, multiplied in autocast's dtype, or in the dtype of `hidden` if
    that has 16 bits.

    Args:
        hidden: (T, w).
        table: (n, w).
        bias: (n,).
        chosen: (T,) ids of the targets; -1 for a target that is not in the table, whose logit counts as 0.
        others: (T,) log normalizers of logits that belong to the same softmax; None if there are none.
        spare: memory for the gradient of the table.
        size: of the parts; by default as large as is fast, and all tokens for tensors without data.
    """
    work = _work(hidden, spare, size)
    losses: Tensor = _TokenLosses.apply(work, hidden, table, bias, others, chosen.contiguous())
    return losses


def total_loss(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    chosen: Tensor,
    *,
    others: Tensor | None = None,
    weights: Tensor,
    spare: SpareGradient,
    size: PartSize | None = None,
) -> Tensor:
    """Return the sum (0-d) of the losses with these weights (T,), float32 at least; see `token_losses`.

    Its gradients are computed with it, so that only one backward pass is possible.
    """
    work = _work(hidden, spare, size)
    inputs = (hidden, table, bias, others)
    needs_gradient = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in inputs)
    # Kernels read neighbours; the targets of segments with one token are a column.
    total: Tensor = _TotalLoss.apply(work, *inputs, chosen.contiguous(), weights.contiguous(), needs_gradient)
    return total


def _work(hidden: Tensor, spare: SpareGradient, size: PartSize | None) -> "_Work":
    """Return how the losses of hidden states are computed; see `token_losses`."""
    if size is None:
        size = ALL_TOKENS if memory_is_unlimited() else DEFAULT_SIZE
    dtype = autocast_dtype(hidden)
    rows = row_losses
    if runs_triton(hidden.device, dtype):
        from txlcli.core.kernels import normalizer_triton  # noqa: PLC0415 - PyTorch for CPUs has no Triton

        rows = normalizer_triton.row_losses
    return _Work(dtype, rows, size, spare)


def row_losses(
    logits: Tensor, chosen: Tensor, others: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Return the cross entropy of each token, (t,), and gradients of its weighted sum; the logits are overwritten.

    Args:
        logits: (t, n).
        chosen: (t,) ids of the targets; -1, or any other id without a logit, for a logit of 0.
        others: (t,) log normalizers of other logits, in the dtype of the sums.
        weights: (t,) of the tokens; None, if no gradient is needed.
    Returns:
        The losses, the log normalizers of all logits (t,), and the gradients: those of the logits (t, n) in their
        dtype, and their sums over tokens (n,).
    """
    inside = (chosen >= 0) & (chosen < logits.shape[1])
    column = torch.where(inside, chosen, 0)[:, None]
    of_chosen = torch.where(inside, logits.gather(1, column)[:, 0], 0.0).to(others.dtype)
    largest = logits.amax(dim=-1, keepdim=True).to(others.dtype)
    exponentials = torch.sub(logits, largest, out=logits if logits.dtype == others.dtype else None).exp_()
    total = torch.logaddexp(others, exponentials.sum(dim=-1).log_().add_(largest[:, 0]))
    losses = total - of_chosen
    if weights is None:
        return losses, total, None
    grad = exponentials.mul_(weights[:, None] * (largest - total[:, None]).exp_())
    grad.scatter_add_(1, column, torch.where(inside, -weights, 0.0)[:, None])
    return losses, total, (grad.to(logits.dtype), grad.sum(dim=0))


@dataclass(frozen=True)
class _Work:
    """How the losses of one call are computed; see `token_losses`."""

    dtype: torch.dtype
    """Of products."""
    rows: RowLosses
    size: PartSize
    spare: SpareGradient

    def losses(
        self,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        others: Tensor | None,
        chosen: Tensor,
        weights: Tensor | None = None,
    ) -> tuple[Tensor, Gradients | None]:
        """Return the losses (T,) and, if these have weights (T,), the gradients of their weighted sum."""
        exact = torch.promote_types(self.dtype, torch.float32)
        losses = torch.empty(len(hidden), dtype=exact, device=hidden.device)
        total = torch.empty_like(losses)
        other_normalizers = torch.full_like(losses, -torch.inf) if others is None else others.to(exact)
        parts = self.size.parts(hidden, len(table))
        gradients = None
        if weights is not None:
            weights = weights.to(exact)
            gradients = self._first_gradients(hidden, table, bias, exact if len(parts) > 1 else table.dtype)
        weight = table.to(self.dtype)
        added = bias.to(self.dtype)
        for part in parts:
            read = hidden[part].to(self.dtype)
            logits = linear(read, weight, added)
            of_part = None if weights is None else weights[part]
            losses[part], total[part], of_logits = self.rows(logits, chosen[part], other_normalizers[part], of_part)
            if gradients is not None and of_logits is not None:
                grad, sums = of_logits
                grad_hidden, grad_table, grad_bias = gradients
                grad_hidden[part] = linear(grad, weight.mT)
                grad_bias.add_(sums)
                _add_product(grad_table, grad.mT, read, first=part.start == 0)
            del logits, of_logits  # free them before the next part allocates its own
        if gradients is None or weights is None:
            return losses, None
        grad_hidden, grad_table, grad_bias = gradients
        grad_others = None if others is None else (weights * (others - total).exp()).to(others.dtype)
        return losses, (grad_hidden, grad_table.to(table.dtype), grad_bias.to(bias.dtype), grad_others)

    def _first_gradients(
        self, hidden: Tensor, table: Tensor, bias: Tensor, dtype: torch.dtype
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for the gradients of hidden states, of the table in a dtype, and of the bias.

        That of the bias is zeros; the others are overwritten, but that of the table is zeros if there is no token.
        """
        grad_table = self.spare.acquire(table, dtype)
        if not len(hidden):
            grad_table.zero_()
        grad_bias = torch.zeros_like(bias, dtype=torch.promote_types(self.dtype, torch.float32))
        return torch.empty_like(hidden), grad_table, grad_bias


class _TokenLosses(torch.autograd.Function):
    """`token_losses`."""

    @staticmethod
    def forward(
        ctx: Any, work: _Work, hidden: Tensor, table: Tensor, bias: Tensor, others: Tensor | None, chosen: Tensor
    ) -> Tensor:
        ctx.work = work
        ctx.save_for_backward(hidden, table, bias, others, chosen)
        losses, _ = work.losses(hidden, table, bias, others, chosen)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        _, gradients = ctx.work.losses(*ctx.saved_tensors, weights=grad_outputs[0].contiguous())
        assert gradients is not None
        return None, *gradients, None


class _TotalLoss(torch.autograd.Function):
    """`total_loss`: the gradient of the logits is softmax minus one-hot targets, times the weights."""

    @staticmethod
    def forward(
        ctx: Any,
        work: _Work,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        others: Tensor | None,
        chosen: Tensor,
        weights: Tensor,
        needs_gradient: bool,
    ) -> Tensor:
        of_gradient = weights if needs_gradient else None
        losses, ctx.gradients = work.losses(hidden, table, bias, others, chosen, of_gradient)
        return (losses * weights).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        gradients = ctx.gradients
        if gradients is None:
            raise RuntimeError("a second backward pass through a total loss: its gradients have been handed out")
        ctx.gradients = None
        _scale([gradient for gradient in gradients if gradient is not None], grad_outputs[0])
        return None, *gradients, None, None, None


def _scale(gradients: list[Tensor], factor: Tensor) -> None:
    """Multiply gradients by a factor (0-d), in place."""
    if factor.device.type != "cuda":
        for gradient in gradients:
            gradient.mul_(factor)
        return
    # There, `mul_` by a tensor of one element accesses single numbers; this accesses neighbors at once.
    for dtype in {gradient.dtype for gradient in gradients}:
        of_dtype = [gradient for gradient in gradients if gradient.dtype == dtype]
        foreach.mul_(of_dtype, factor.to(dtype))


def _add_product(out: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Write a product to `out`, or add it to the sum of earlier parts."""
    same_dtype = left.dtype == out.dtype
    if first and same_dtype:
        torch.mm(left, right, out=out)
    elif first:
        out.copy_(left @ right)
    elif same_dtype:
        out.addmm_(left, right)
    else:
        out.add_(left @ right)
