"""Products with a matrix of weights, by the faster of the libraries that PyTorch brings for CPUs.

PyTorch multiplies 16-bit numbers by oneDNN and fp32 by MKL, whose kernels are made for Intel's processors. On AMD's
with AVX-512 oneDNN takes 10 to 30 % less time for the shapes of language models (measured on two cores), so there it
multiplies fp32, too; but gradients of weights, whose operands lie across, take less time by MKL. PyTorch's own compiler
reaches oneDNN by the same operators. Under autocast training multiplies in bf16, and the backward pass casts a weight
again: autocast would keep its cast, half as large as all weights, from the forward pass on.

While weights do not change, a matrix may be packed: laid out as the processor reads it. Products of few rows then take
half the time, of 80 rows 10 to 20 % less, of 800 rows 3 to 5 % less (measured, in fp32 and bf16).

Axes: T rows.
"""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from txlcli.core.kernels.private import has_onednn, onednn_has_bf16, onednn_linear, onednn_reorder

NARROWEST = 192
"""Columns of a matrix below which oneDNN gains nothing (measured)."""


_casts_are_kept = ContextVar("_casts_are_kept", default=False)


@contextmanager
def kept_casts() -> Iterator[None]:
    """Inside this block autocast's casts of weights are kept for the backward pass, as on CUDA."""
    before = _casts_are_kept.set(True)
    try:
        yield
    finally:
        _casts_are_kept.reset(before)


@dataclass(frozen=True)
class Packed:
    """A matrix (out, in) as oneDNN reads it fastest, with a bias (out,)."""

    matrix: Tensor
    bias: Tensor | None

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> "Packed":
        """The numbers that the weight and the bias hold now."""
        matrix = onednn_reorder(weight.detach())
        return cls(matrix, None if bias is None else bias.detach().clone())

    def multiply(self, rows: Tensor) -> Tensor:
        """What `linear` gives, without a gradient: (..., in) -> (..., out)."""
        return onednn_linear(rows.to(self.matrix.dtype), self.matrix, self.bias)


class Linear(nn.Linear):
    """nn.Linear, whose product is that of `linear`."""

    packed: Packed | None = None
    """What it multiplies by instead of its weight and bias, whatever may be loaded into these later."""

    def pack(self, dtype: torch.dtype) -> None:
        """`LanguageModel.pack` for this matrix."""
        if should_pack(self.weight, dtype):
            self.packed = Packed.of(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))
        else:
            self.cast(dtype)

    def cast(self, dtype: torch.dtype) -> None:
        """Have weight and bias in this number format, for reading; the parameters so far are left as they are."""
        if dtype != self.weight.dtype:
            self.weight = nn.Parameter(self.weight.detach().to(dtype), requires_grad=False)
            self.bias = None if self.bias is None else nn.Parameter(self.bias.detach().to(dtype), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        return linear(rows, self.weight, self.bias) if self.packed is None else self.packed.multiply(rows)


def linear(rows: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`F.linear`: (..., T, in) times the transpose of a matrix (out, in), plus a bias (out,) -> (..., T, out)."""
    dtype = _onednn_format(rows, weight)
    if dtype is None:
        return F.linear(rows, weight, bias)
    if torch.is_grad_enabled():
        product: Tensor = _Linear.apply(rows, weight, bias, dtype)
        return product
    return onednn_linear(rows, weight, bias)


def _onednn_format(rows: Tensor, weight: Tensor) -> torch.dtype | None:
    """The number format in which oneDNN multiplies; None where PyTorch chooses library and format."""
    if torch.compiler.is_compiling():  # the compiler has ways of its own, and could not follow the questions below
        return None
    if weight.dtype != torch.float32 or weight.shape[1] < NARROWEST or rows.device.type != "cpu" or rows.dim() < 2:
        return None
    if not torch.is_autocast_enabled("cpu"):
        return torch.float32 if rows.dtype == torch.float32 and onednn_is_faster() else None
    # Autocast would keep its cast of the weight for the backward pass. Where nothing is learned, it may.
    learning = torch.is_grad_enabled() and not _casts_are_kept.get()
    short = torch.get_autocast_dtype("cpu") == torch.bfloat16 and onednn_has_bf16()
    return torch.bfloat16 if learning and short else None


@functools.cache
def onednn_is_faster() -> bool:
    """Whether oneDNN multiplies fp32 faster than MKL on this machine; it says no where nobody has measured."""
    try:
        processor = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    measured = "AuthenticAMD" in processor and torch.backends.cpu.get_cpu_capability() == "AVX512"
    return measured and has_onednn()


def should_pack(weight: Tensor, dtype: torch.dtype) -> bool:
    """Whether products with a matrix (out, in) take less time if it is packed in this number format."""
    if weight.shape[1] < NARROWEST or weight.device.type != "cpu":
        return False
    return onednn_is_faster() if dtype == torch.float32 else dtype == torch.bfloat16 and onednn_has_bf16()


class _Linear(torch.autograd.Function):
    """A product in some number format, of which the rows are kept as they are multiplied, the weight as it is."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Tensor:
        cast = rows.to(dtype)
        ctx.save_for_backward(cast, weight)
        ctx.format_of_rows = rows.dtype
        product = onednn_linear(cast, weight.to(dtype), None if bias is None else bias.to(dtype))
        return product.detach()  # no view, so that it may be changed in place

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        rows, weight = ctx.saved_tensors
        for_rows, for_weight, for_bias, _ = ctx.needs_input_grad
        grad = grad_outputs[0]
        flat = grad.flatten(0, -2)  # (T, out)
        return (
            onednn_linear(grad, weight.to(rows.dtype).mT, None).to(ctx.format_of_rows) if for_rows else None,
            (flat.mT @ rows.flatten(0, -2)).to(weight.dtype) if for_weight else None,
            flat.sum(dim=0).to(weight.dtype) if for_bias else None,
            None,
        )
