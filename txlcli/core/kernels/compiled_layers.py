"""Operations of compiled layers: plain PyTorch that torch.compile fuses, and products of matrices side by side.

Axes: B batch, L segment, K keys, H heads, D head width, d model width.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.core.backend import pad_to, repeat_for_lanes, round_up
from txlcli.core.kernels.device import CUDA_MULTIPLE, cast, cast_for_products, row_multiple


def plain_dropout(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
    """Return `core.kernels.dropout.drop` in operations that a compiler fuses; on a CPU the mask is another one."""
    if rate == 0:
        return hidden
    if not variational:
        return F.dropout(hidden, rate)
    exact = torch.promote_types(hidden.dtype, torch.float32)
    scale = F.dropout(torch.ones_like(hidden[..., :1, :], dtype=exact), rate)
    return cast(hidden * scale, hidden.dtype)


class _FusedReluDropout(torch.autograd.Function):
    """Dropout of relu(hidden) for the next product, which keeps the result: a mask is not kept."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, rate: float, variational: bool) -> Tensor:
        out = cast_for_products(plain_dropout(F.relu(hidden), rate, variational=variational))
        ctx.save_for_backward(out)
        ctx.scale = 1 / (1 - rate)
        ctx.dtype = hidden.dtype
        return out

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, grad_outputs[0].to(ctx.dtype) * ctx.scale, 0.0), None, None


def fused_relu_dropout(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
    """Drop entries of relu(hidden), as one operation."""
    dropped: Tensor = _FusedReluDropout.apply(hidden, rate, variational)
    return dropped


def fused_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear, with the bias added in its own dtype by the next operation."""
    product = F.linear(rows, weight)
    if bias is None:
        return product
    if len(weight) > weight.shape[1]:  # gradients of narrow rows are added up with those of the norm that follows
        bias = repeat_for_lanes(bias, product)
    return product + bias


def aligned_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return `fused_linear` of rows (..., in) that may end in zeros: at the multiple of CUDA, ending in zeros."""
    width = round_up(len(weight), CUDA_MULTIPLE)
    if bias is not None:
        bias = pad_to(bias, width)
    return fused_linear(rows, pad_to(weight, rows.shape[-1], width), bias)


def joined_heads(matrices: Iterable[nn.Linear], d_head: int, width: int) -> Tensor:
    """Return the weights (H * D, d) of matrices one below the other, in the dtype of products.

    Zeros are appended: to D up to the multiple of the device, and to d up to `width`.
    """
    weight = torch.cat([matrix.weight for matrix in matrices])
    heads = weight.unflatten(0, (-1, d_head))  # (H, D, d)
    padded = pad_to(heads, width, round_up(d_head, row_multiple(weight.device)))
    return cast_for_products(padded.flatten(0, 1))


class ContextProducts(torch.autograd.Function):
    """Products of h with W_q, and of [SG(m) o h] with W_kE and W_v (3.2); SG(m) has a gradient only if it is needed."""

    @staticmethod
    def forward(ctx: Any, past: Tensor, segment: Tensor, w_query: Tensor, w_key_value: Tensor) -> tuple[Tensor, Tensor]:
        context = torch.cat([past, segment], dim=1)  # (B, K, d)
        ctx.save_for_backward(context, segment, w_query, w_key_value)
        return F.linear(segment, w_query), F.linear(context, w_key_value)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        context, segment, w_query, w_key_value = ctx.saved_tensors
        grad_query, grad = grad_outputs
        mem_len = context.shape[1] - segment.shape[1]
        weight = w_key_value.expand(len(grad), -1, -1)
        grad_past = grad[:, :mem_len] @ weight if ctx.needs_input_grad[0] else None
        # One product per lane, so that rows are not copied, which adds its result to the gradient of the queries.
        grad_segment = torch.baddbmm(grad_query @ w_query, grad[:, mem_len:], weight)
        grad_w_query = grad_query.flatten(0, 1).mT @ segment.flatten(0, 1)
        grad_w_key_value = grad.flatten(0, 1).mT @ context.flatten(0, 1)
        return grad_past, grad_segment, grad_w_query, grad_w_key_value
