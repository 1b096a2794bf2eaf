"""ReLU followed by dropout, as one operation that keeps only its result for the backward pass."""

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F


class DropoutModule(Protocol):
    """The interface of `core.model.dropout.Dropout` that is used here."""

    rate: float
    training: bool

    def __call__(self, hidden: Tensor) -> Tensor:
        """Drop entries, with a gradient."""
        ...

    def overwrite(self, hidden: Tensor) -> Tensor:
        """Drop entries in place where that is as fast, without a gradient."""
        ...


class _ReluDropout(torch.autograd.Function):
    """The result is positive exactly where the gradient passes, so neither the mask nor the input is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, dropout: DropoutModule) -> Tensor:
        # Overwrites `hidden`, but is a separate node of the graph: an in-place node would copy the gradient of a view.
        out = dropout.overwrite(hidden.detach().relu_())
        ctx.save_for_backward(out)
        ctx.rate = dropout.rate if dropout.training else 0.0
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        grad: Tensor = torch.ops.aten.threshold_backward(grad_outputs[0], out, 0)
        return grad.mul_(1 / (1 - ctx.rate)) if ctx.rate else grad, None


def relu_dropout(hidden: Tensor, dropout: DropoutModule) -> Tensor:
    """Return dropout(relu(hidden)), any shape -> the same shape; `hidden` may be overwritten.

    The backward pass needs the result only, which the following product keeps anyway: the inner activations are the
    widest of a layer.
    """
    has_gradient = torch.is_grad_enabled()
    if has_gradient and not torch.compiler.is_compiling():
        dropped: Tensor = _ReluDropout.apply(hidden, dropout)
        return dropped
    return dropout(F.relu(hidden, inplace=not has_gradient))
