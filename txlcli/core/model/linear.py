"""Matrices of a model, which a backend multiplies by, or a packed copy while the model only reads.

Axes: B batch, L segment, K keys, T rows, H heads, D head width, d model width.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.core.backend import pad_to, round_up
from txlcli.core.kernels.device import cast_for_products, row_multiple
from txlcli.core.kernels.linear import pack
from txlcli.core.model.backends import FAST


class Linear(nn.Linear):
    """nn.Linear, computed by a backend."""

    backend = FAST
    packed: tuple[Tensor, Tensor | None] | None = None
    """Weight and bias for reading. Not updated when the parameters change."""

    def pack(self, dtype: torch.dtype) -> None:
        """Prepare the weight for reading in this dtype: see `LanguageModel.pack`."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        self.packed = pack(self.weight, dtype), bias

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (..., T, in) -> (..., T, out)."""
        return self.backend.linear(rows, *(self.packed or (self.weight, self.bias)))


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


def merge(matrices: Sequence[nn.Linear], dtype: torch.dtype) -> Tensor:
    """Return the weights of matrices of equal sizes one below the other, for reading in a dtype.

    Where they are not in oneDNN's layout, the matrices read views of them.
    """
    merged = pack(torch.cat([matrix.weight for matrix in matrices]), dtype)
    if merged.is_mkldnn:
        parts = [matrix.weight.detach().to(dtype) for matrix in matrices]
    else:
        parts = list(merged.chunk(len(matrices)))
    for matrix, part in zip(matrices, parts, strict=True):
        assert isinstance(matrix, Linear)
        matrix.packed = part, None
    return merged
