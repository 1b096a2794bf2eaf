"""Linear layers that use the faster of PyTorch's two matrix libraries for CPUs.

By default PyTorch multiplies bf16 by oneDNN and fp32 by MKL, which is optimized for Intel processors. On AMD processors
with AVX-512 oneDNN takes 10 to 30 % less time for the shapes of language models (measured on two cores), so fp32 uses
it there, too. Gradients of weights, which read a transposed operand, stay with MKL, which is faster for them.

Under bf16 autocast, training casts each weight again in the backward pass. Autocast would keep the casts of all weights
from the forward pass, half as large as the weights themselves.

On CUDA, training pads the rows of operands in 16 bits or TF32 whose length is not a multiple of 8, when it casts them.

While weights do not change, they can be packed into the layout that the processor reads fastest. Products of a few rows
then take half the time, of 80 rows 10 to 20 % less, of 800 rows 3 to 5 % less (measured in fp32 and bf16).

Axes: T rows.
"""

import functools
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from txlcli.core.backend import pad_to
from txlcli.core.kernels.device import autocast_dtype, row_multiple_of_products
from txlcli.core.kernels.modes import computes_as_gpu, setting
from txlcli.core.kernels.private import onednn_has_bf16, onednn_linear, onednn_reorder

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class OneDnnUse:
    """Products that oneDNN computes instead of PyTorch's default library."""

    fp32: bool
    """True if oneDNN multiplies fp32."""
    bf16: bool
    """True if oneDNN multiplies bf16."""
    min_columns: int = 192
    """Columns of a weight below which oneDNN gains nothing (measured)."""


_onednn_use: ContextVar[OneDnnUse | None] = ContextVar("_onednn_use", default=None)  # None: this machine's


def use_onednn(use: OneDnnUse) -> AbstractContextManager[None]:
    """Use oneDNN inside this block for these products, not for those that were measured to be faster."""
    return setting(_onednn_use, use)


@functools.cache
def _measured_use() -> OneDnnUse:
    return OneDnnUse(fp32=onednn_is_faster(torch.backends.cpu.get_cpu_capability()), bf16=onednn_has_bf16())


def onednn_is_faster(capability: str, cpuinfo: Path = CPUINFO) -> bool:
    """Return True if oneDNN multiplies fp32 faster than MKL. False on CPUs that have not been measured.

    Args:
        capability: vector instructions that PyTorch uses, as "AVX512".
        cpuinfo: description of the processor.
    """
    try:
        processor = cpuinfo.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    measured = "AuthenticAMD" in processor and capability == "AVX512"
    return measured and torch.backends.mkldnn.is_available()


def by_onednn(weight: Tensor, dtype: torch.dtype) -> bool:
    """Return True if oneDNN multiplies by this weight (out, in) in this dtype."""
    use = _onednn_use.get() or _measured_use()
    if weight.shape[1] < use.min_columns or weight.device.type != "cpu":
        return False
    if dtype == torch.float32:
        return use.fp32
    return dtype == torch.bfloat16 and use.bf16


def pack(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values of a weight (out, in) for reading in a dtype, in oneDNN's layout where that is faster."""
    values = weight.detach().to(dtype)
    if by_onednn(weight, dtype):
        return onednn_reorder(values)
    return values


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return F.linear: rows (..., T, in) times the transpose of weight (out, in), plus bias (out,) -> (..., T, out).

    A weight in oneDNN's layout has no gradient.
    """
    if weight.is_mkldnn:
        return onednn_linear(rows.to(weight.dtype), weight, bias)
    multiple = row_multiple_of_products(rows)
    if multiple > 1 and (weight.shape[0] % multiple or weight.shape[1] % multiple):
        return _multiply_aligned(rows, weight, bias, multiple)[..., : weight.shape[0]]
    dtype = _onednn_dtype(rows, weight)
    if dtype is None:
        return F.linear(rows, weight, bias)
    if torch.is_grad_enabled():
        product: Tensor = _Linear.apply(rows, weight, bias, dtype)
        return product
    return onednn_linear(rows, weight, bias)


def _multiply_aligned(rows: Tensor, weight: Tensor, bias: Tensor | None, multiple: int) -> Tensor:
    """Multiply with all rows at a multiple: CUDA's fast kernels in 16 bits and TF32 read and write 16 bytes at once.

    Returns (..., T, out), followed by columns of zeros.
    """
    dtype = autocast_dtype(rows)
    rows = pad_columns(rows, dtype, multiple)
    weight = pad_columns(weight, dtype, multiple, rows=True)
    if bias is not None:
        bias = pad_columns(bias[None], dtype, multiple)[0]
    with torch.autocast(rows.device.type, enabled=False):
        return F.linear(rows, weight, bias)


def pad_columns(matrix: Tensor, dtype: torch.dtype, multiple: int, *, rows: bool = False) -> Tensor:
    """Cast a matrix (..., T, in) and append zeros to each row up to a multiple, and rows of zeros if `rows`."""
    height, width = matrix.shape[-2:]
    padded_width = width + -width % multiple
    padded_height = height
    if rows:
        padded_height += -height % multiple
    return pad_to(matrix.to(dtype), padded_width, padded_height)


def _onednn_dtype(rows: Tensor, weight: Tensor) -> torch.dtype | None:
    """Return the dtype in which oneDNN multiplies, or None if PyTorch chooses library and dtype."""
    if weight.dtype != torch.float32 or rows.device.type != "cpu" or rows.dim() < 2 or torch.compiler.is_compiling():
        return None
    if torch.is_autocast_enabled("cpu"):
        # Autocast caches its cast of the weight for the backward pass; without gradients it may.
        recast = torch.is_grad_enabled() and not computes_as_gpu(rows.device)
        if not recast or torch.get_autocast_dtype("cpu") != torch.bfloat16:
            return None
        dtype = torch.bfloat16
    elif rows.dtype == torch.float32:
        dtype = torch.float32
    else:
        return None
    return dtype if by_onednn(weight, dtype) else None


class _Linear(torch.autograd.Function):
    """A product in a given dtype; the backward pass keeps the rows in that dtype and the weight as it is."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        cast = rows.to(dtype)
        ctx.save_for_backward(cast, weight)
        ctx.rows_dtype = rows.dtype
        if bias is not None:
            bias = bias.to(dtype)
        product = onednn_linear(cast, weight.to(dtype), bias)
        return product.detach()  # not a view, so that it can be modified in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        rows_need_grad, weight_needs_grad, bias_needs_grad, _ = ctx.needs_input_grad
        grad = grad_outputs[0]
        flat = grad.flatten(0, -2)  # (T, out)
        grad_rows = grad_weight = grad_bias = None
        if rows_need_grad:
            grad_rows = onednn_linear(grad, weight.to(rows.dtype).mT, None).to(ctx.rows_dtype)
        if weight_needs_grad:
            grad_weight = (flat.mT @ rows.flatten(0, -2)).to(weight.dtype)
        if bias_needs_grad:
            grad_bias = flat.sum(dim=0).to(weight.dtype)
        return grad_rows, grad_weight, grad_bias, None
