"""Arithmetic whose results are equal to the bit on every machine with IEEE 754 double precision.

Sums differ between machines since their order does, and functions such as exp since their approximations do. Here the
operands of sums and products are rounded to integers that are small enough for every partial sum to be exact in
float64 (below 2^53), so that no order changes the result. Functions are computed by additions, multiplications and
divisions of whole tensors, one after the other: the standard defines each result to the bit.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from txlcli.core.kernels.private import DispatchMode
from txlcli.errors import UsageError

EXACT_BITS = 52
"""Bits of an integer all of whose sums are exact."""
LOG2_E = 1.4426950408889634
LN2_HIGH = 0.6931471803691238  # a product with n is exact
LN2_LOW = 1.9082149292705877e-10  # log(2) = LN2_HIGH + LN2_LOW
PI_2_HIGH = 6.283185307179586
PI_2_LOW = 2.4492935982947064e-16  # 2 pi = PI_2_HIGH + PI_2_LOW
SQRT_HALF = 0.7071067811865476
MIN_EXPONENT = -700.0
MAX_EXPONENT = 700.0

_AS_THEY_ARE = """
__and__ _to_copy add add_ alias amax arange as_strided bitwise_and bitwise_not cat chunk clamp clone
contiguous copy_ detach div dropout embedding empty empty_like eq expand expand_as fill_ flatten full
full_like ge gt index index_put_ index_select le lift_fresh lt mT masked_fill masked_fill_ maximum minimum
mul mul_ neg new_empty new_zeros ones ones_like pad permute promote_types relu relu_ remainder reshape select
set_ slice split sqrt squeeze stack sub sub_ t to transpose unflatten unsqueeze view where zero_ zeros
zeros_like
"""
AS_THEY_ARE = frozenset(_AS_THEY_ARE.split())
"""Operations that move values, or that the standard defines to the bit for each value."""


def _as_integers(values: Tensor, bits: int) -> tuple[Tensor, float]:
    """Return the values, times a power of two, rounded to integers of so many bits; and this power."""
    largest = float(values.abs().amax()) if values.numel() else 0.0
    scale = math.ldexp(1.0, bits - math.frexp(largest)[1])
    return (values * scale).round(), scale


def matmul(left: Tensor, right: Tensor) -> Tensor:
    """Multiply matrices (..., n, k) and (..., k, m)."""
    bits = (EXACT_BITS - left.shape[-1].bit_length()) // 2
    left, left_scale = _as_integers(left, bits)
    right, right_scale = _as_integers(right, bits)
    return torch.matmul(left, right) / left_scale / right_scale


def linear(inputs: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Multiply by the transposed weight, and add the bias."""
    outputs = matmul(inputs, weight.mT)
    return outputs if bias is None else outputs + bias


def _sum(values: Tensor, dim: int = -1) -> Tensor:
    """Sum over a dimension, which stays."""
    integers, scale = _as_integers(values, EXACT_BITS - values.shape[dim].bit_length())
    return integers.sum(dim, keepdim=True) / scale


def exp(values: Tensor) -> Tensor:
    """Return e^x = 2^n e^r with |r| < 0.35; 0 below e^-700."""
    bounded = values.clamp(MIN_EXPONENT, MAX_EXPONENT)
    n = (bounded * LOG2_E).round()
    r = (bounded - n * LN2_HIGH) - n * LN2_LOW
    series = torch.ones_like(r)
    for k in range(14, 0, -1):
        series = series * (r / k) + 1.0
    power = (n.long() + 1023 << 52).view(torch.float64)  # 2^n, by its exponent bits
    return torch.where(values < MIN_EXPONENT, 0.0, series * power)


def log(values: Tensor) -> Tensor:
    """Return the logarithm of positive values: m 2^e, by the series of artanh((m - 1) / (m + 1))."""
    m, e = torch.frexp(values)
    is_small = m < SQRT_HALF
    m = torch.where(is_small, m * 2.0, m)
    e = torch.where(is_small, e - 1, e).double()
    s = (m - 1.0) / (m + 1.0)
    square = s * s
    series = torch.zeros_like(s)
    for k in range(23, 0, -2):
        series = series * square + 1.0 / k
    return e * LN2_HIGH + (e * LN2_LOW + 2.0 * s * series)


def sin(angle: Tensor) -> Tensor:
    """Return the sine, by its series between -pi and pi."""
    turns = (angle / PI_2_HIGH).round()
    r = (angle - turns * PI_2_HIGH) - turns * PI_2_LOW
    square = r * r
    series = torch.ones_like(r)
    for k in range(28, 0, -2):
        series = 1.0 - series * (square / (k * (k + 1)))
    return r * series


def softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the softmax over a dimension."""
    weights = exp(scores - scores.amax(dim, keepdim=True))
    return weights / _sum(weights, dim)


def log_softmax(scores: Tensor, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """Return the logarithm of the softmax over a dimension."""
    shifted = scores - scores.amax(dim, keepdim=True)
    return shifted - log(_sum(exp(shifted), dim))


def rms_norm(inputs: Tensor, shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Divide by the root of the mean square over the last dimension."""
    if eps is None:
        eps = torch.finfo(inputs.dtype).eps
    mean_square = _sum(inputs * inputs) / inputs.shape[-1]
    outputs = inputs / (mean_square + eps).sqrt()
    return outputs if weight is None else outputs * weight


def layer_norm(
    inputs: Tensor,
    shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    enable: bool = True,
) -> Tensor:
    """Normalize the mean and the variance over the last dimension."""
    mean = _sum(inputs) / inputs.shape[-1]
    outputs = rms_norm(inputs - mean, shape, weight, eps)
    return outputs if bias is None else outputs + bias


OWN: dict[str, Callable[..., Tensor]] = {
    "cos": lambda angle: sin(angle + PI_2_HIGH / 4),
    "exp": exp,
    "layer_norm": layer_norm,
    "linear": linear,
    "log": log,
    "log_softmax": log_softmax,
    "matmul": matmul,
    "bmm": matmul,
    "mm": matmul,
    "pow": lambda base, exponent: exp(exponent * log(torch.tensor(base, dtype=torch.float64))),
    "rms_norm": rms_norm,
    "silu": lambda inputs: inputs / (exp(-inputs) + 1.0),
    "sin": sin,
    "softmax": softmax,
}
"""Functions of this module, by the operation of PyTorch that they replace."""


class PortableArithmetic(DispatchMode):
    """Computes all operations of a model of float64 within its context with portable results.

    An operation for which this is not known raises a UsageError.
    """

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        _, name, overload = str(func).split(".")  # aten.pow.Scalar
        values = kwargs or {}
        if name in OWN and not (name == "pow" and overload != "Scalar"):
            return OWN[name](*args, **values)
        if name in AS_THEY_ARE and "alpha" not in values:
            return func(*args, **values)
        raise UsageError(f"portable arithmetic has no {name}.{overload}, which this model needs; omit `portable`")
