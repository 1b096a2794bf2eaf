"""Dropout, its random masks, and ReLU followed by dropout as one operation."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

STEPS = 1 << 16
"""The rate is rounded to a multiple of 1 / STEPS on a CPU."""


def keep_mask(shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    """Sample a uint8 mask from PyTorch's generator: 0 with probability `rate`, else 1."""
    if device.type == "cpu" and not torch.compiler.is_compiling():  # which cannot trace draws of whole words
        return _keep_mask_on_cpu(shape, rate)
    return torch.empty(shape, dtype=torch.uint8, device=device).bernoulli_(1 - rate)


def _keep_mask_on_cpu(shape: torch.Size, rate: float) -> Tensor:
    """Cut four 16-bit draws from each 64-bit random number: on a CPU one draw per entry makes plain dropout slow.

    The mask is uint8, not bool: creating a bool mask and multiplying by it takes three to five times as long.
    """
    dropped = round(rate * STEPS)
    if dropped == STEPS:  # one more than the largest 16-bit number: it would wrap around and keep everything
        return torch.zeros(shape, dtype=torch.uint8)
    count = shape.numel()
    words = torch.empty(-(-count // 4), dtype=torch.int64).random_(-(1 << 63), None)
    mask = torch.empty(count, dtype=torch.uint8)
    torch.ge(words.view(torch.int16)[:count], dropped - STEPS // 2, out=mask)
    return mask.view(shape)


def mask_scale(mask: Tensor, rate: float, dtype: torch.dtype) -> Tensor:
    """Return the factors of a mask, 0 or 1 / (1 - rate), at least in float32: 16 bits would round them."""
    return mask.to(torch.promote_types(dtype, torch.float32)) / (1 - rate)


def drop(hidden: Tensor, rate: float, *, variational: bool, in_place: bool = False) -> Tensor:
    """Zero entries with probability `rate` and scale the others; in place where that is allowed and as fast.

    Variational: one mask for all positions, the axis before the last.
    """
    if rate == 0:
        return hidden
    if variational:
        shape = torch.Size((*hidden.shape[:-2], 1, hidden.shape[-1]))
        scale = mask_scale(keep_mask(shape, rate, hidden.device), rate, hidden.dtype)
        return (hidden * scale).to(hidden.dtype)
    if hidden.device.type != "cpu":
        return F.dropout(hidden, rate)
    mask = keep_mask(hidden.shape, rate, hidden.device)
    kept = torch.mul(hidden, mask, out=hidden if in_place else None)
    return kept.mul_(1 / (1 - rate))


class _ReluDropout(torch.autograd.Function):
    """The result is positive exactly where the gradient passes, so neither the mask nor the input is kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rate: float, variational: bool) -> Tensor:
        # Overwrites `hidden`, but is a separate node of the graph: an in-place node would copy the gradient of a view.
        out = drop(hidden.detach().relu_(), rate, variational=variational, in_place=True)
        ctx.save_for_backward(out)
        ctx.rate = rate
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        grad: Tensor = torch.ops.aten.threshold_backward(grad_outputs[0], out, 0)
        if ctx.rate:
            grad.mul_(1 / (1 - ctx.rate))
        return grad, None, None


def relu_dropout(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
    """Return `drop` of relu(hidden), any shape -> the same shape; `hidden` may be overwritten.

    The backward pass needs the result only, which the following product keeps anyway: the inner activations are the
    widest of a layer.
    """
    if torch.is_grad_enabled():
        dropped: Tensor = _ReluDropout.apply(hidden, rate, variational)
        return dropped
    return drop(F.relu(hidden, inplace=True), rate, variational=variational)
