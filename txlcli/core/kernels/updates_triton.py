"""Updates of parameters on CUDA that clip, update and cast in one pass: 28 bytes per weight for Adam, 40 for LAMB.

A pass reads a 16-bit gradient, the weight and its two moments, and writes the last three and the 16-bit copy that
products read. LAMB reads weight and moments a second time, since the norms of a whole tensor scale its update.

Parameters lie in one buffer, which is divided into chunks of at most CHUNK numbers, each of one parameter. Sums are
in float32, in an order that does not change: there are no atomic additions.

Importing this module needs Triton.

Axes: n numbers of the buffer, c chunks, p parameters.
"""

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from txlcli.core.kernels.updates import CHUNK, UNIT

WARPS = 8
"""Groups of 32 threads per program."""
CHUNKS_OF_SUM = 1024
"""Chunks whose sums a program adds up at a time."""


@triton.jit
def _chunk(chunks_base, IS_ALIGNED: constexpr, CHUNK: constexpr):
    """Return the places of a program's numbers, True for those that exist, and their parameter's number."""
    row = chunks_base + tl.program_id(0) * 3
    first = tl.multiple_of(tl.load(row), 16)
    end = tl.load(row + 1)
    if IS_ALIGNED:
        end = tl.multiple_of(end, 16)
    at = first + tl.arange(0, CHUNK)
    return at, at < end, tl.load(row + 2)


@triton.jit
def _moments(means_base, squares_base, at, exists, gradient, BETA_1: constexpr, BETA_2: constexpr):
    """Update and return the means of gradients and of their squares."""
    mean = tl.load(means_base + at, mask=exists, other=0.0) * BETA_1 + gradient * (1 - BETA_1)
    square = tl.load(squares_base + at, mask=exists, other=0.0) * BETA_2 + gradient * gradient * (1 - BETA_2)
    tl.store(means_base + at, mean, mask=exists)
    tl.store(squares_base + at, square, mask=exists)
    return mean, square


@triton.jit
def _store(weights_base, copies_base, at, exists, weight, CASTS: constexpr):
    tl.store(weights_base + at, weight, mask=exists)
    if CASTS:
        tl.store(copies_base + at, weight.to(copies_base.dtype.element_ty), mask=exists)


@triton.jit
def adam_kernel(
    weights_base, gradients_base, means_base, squares_base, copies_base, chunks_base, steps_base, factor_base,
    rate_base, BETA_1: constexpr, BETA_2: constexpr, LOG2_BETA_1: constexpr, LOG2_BETA_2: constexpr, EPS: constexpr,
    DECAY: constexpr, IS_DECOUPLED: constexpr, CASTS: constexpr, IS_ALIGNED: constexpr, CHUNK: constexpr,
):  # fmt: skip
    """Update a chunk as torch.optim.Adam does, or AdamW."""
    at, exists, parameter = _chunk(chunks_base, IS_ALIGNED, CHUNK)
    rate = tl.load(rate_base)
    step = tl.load(steps_base + parameter).to(tl.float64)
    correction_1 = (1.0 - tl.exp2(step * LOG2_BETA_1)).to(tl.float32)
    correction_2 = tl.sqrt_rn((1.0 - tl.exp2(step * LOG2_BETA_2)).to(tl.float32))
    gradient = tl.load(gradients_base + at, mask=exists, other=0.0).to(tl.float32) * tl.load(factor_base)
    weight = tl.load(weights_base + at, mask=exists, other=0.0)
    if IS_DECOUPLED:
        weight -= rate * DECAY * weight
    else:
        gradient += DECAY * weight
    mean, square = _moments(means_base, squares_base, at, exists, gradient, BETA_1, BETA_2)
    divisor = tl.div_rn(tl.sqrt_rn(square), correction_2) + EPS
    weight -= tl.div_rn(rate / correction_1 * mean, divisor)
    _store(weights_base, copies_base, at, exists, weight, CASTS)


@triton.jit
def lamb_moments_kernel(
    weights_base, gradients_base, means_base, squares_base, sums_base, chunks_base, factor_base,
    BETA_1: constexpr, BETA_2: constexpr, EPS: constexpr, DECAY: constexpr, IS_ALIGNED: constexpr, CHUNK: constexpr,
):  # fmt: skip
    """Update the moments of a chunk; store the sums of squares of its weights and of their update."""
    at, exists, _ = _chunk(chunks_base, IS_ALIGNED, CHUNK)
    gradient = tl.load(gradients_base + at, mask=exists, other=0.0).to(tl.float32) * tl.load(factor_base)
    weight = tl.load(weights_base + at, mask=exists, other=0.0)
    mean, square = _moments(means_base, squares_base, at, exists, gradient, BETA_1, BETA_2)
    update = tl.div_rn(mean, tl.sqrt_rn(square) + EPS) + DECAY * weight
    tl.store(sums_base + tl.program_id(0) * 2, tl.sum(weight * weight))
    tl.store(sums_base + tl.program_id(0) * 2 + 1, tl.sum(update * update))


@triton.jit
def sum_kernel(sums_base, firsts_base, totals_base, CHUNKS: constexpr):
    """Add up the sums of the chunks of one parameter."""
    parameter = tl.program_id(0)
    end = tl.load(firsts_base + parameter + 1)
    of_weights = tl.zeros((CHUNKS,), tl.float32)
    of_updates = tl.zeros((CHUNKS,), tl.float32)
    for first in range(tl.load(firsts_base + parameter), end, CHUNKS):
        chunk = first + tl.arange(0, CHUNKS)
        of_weights += tl.load(sums_base + chunk * 2, mask=chunk < end, other=0.0)
        of_updates += tl.load(sums_base + chunk * 2 + 1, mask=chunk < end, other=0.0)
    tl.store(totals_base + parameter * 2, tl.sum(of_weights))
    tl.store(totals_base + parameter * 2 + 1, tl.sum(of_updates))


@triton.jit
def lamb_kernel(
    weights_base, means_base, squares_base, copies_base, chunks_base, totals_base, rate_base,
    EPS: constexpr, DECAY: constexpr, MAX_NORM: constexpr,
    CASTS: constexpr, IS_ALIGNED: constexpr, CHUNK: constexpr,
):  # fmt: skip
    """Update a chunk of weights, given its moments and the sums of squares of all its parameter."""
    at, exists, parameter = _chunk(chunks_base, IS_ALIGNED, CHUNK)
    weight_norm = tl.sqrt_rn(tl.load(totals_base + parameter * 2))
    update_norm = tl.sqrt_rn(tl.load(totals_base + parameter * 2 + 1))
    ratio = tl.minimum(weight_norm, MAX_NORM) / (update_norm + EPS)
    ratio = tl.where((weight_norm > 0) & (update_norm > 0), ratio, 1.0) * tl.load(rate_base)
    weight = tl.load(weights_base + at, mask=exists, other=0.0)
    mean = tl.load(means_base + at, mask=exists, other=0.0)
    square = tl.load(squares_base + at, mask=exists, other=0.0)
    update = tl.div_rn(mean, tl.sqrt_rn(square) + EPS) + DECAY * weight
    _store(weights_base, copies_base, at, exists, weight - ratio * update, CASTS)


@torch.library.custom_op("txl::adam", mutates_args=("weights", "means", "squares", "copies"))
def adam(
    weights: Tensor, gradients: Tensor, means: Tensor, squares: Tensor, copies: Tensor | None, chunks: Tensor,
    steps: Tensor, factor: Tensor, rate: Tensor, betas: list[float], eps: float, decay: float, is_decoupled: bool,
) -> None:  # fmt: skip
    """Update weights (n,) by Adam's rule, or AdamW's.

    Args:
        weights: (n,) float32.
        gradients: (n,) of any dtype.
        means: (n,) of gradients.
        squares: (n,) means of the squares of gradients.
        copies: (n,) the weights in another dtype; overwritten.
        chunks: (c, 3) see `chunks_of`.
        steps: (p,) number of this step, of each parameter.
        factor: (0-d) that gradients are multiplied by.
        rate: (0-d) learning rate.
        betas: decays of the means.
        eps: added to the divisor.
        decay: weight decay.
        is_decoupled: True if weights decay as in AdamW, False if the decay is added to the gradient.
    """
    log2_betas = [math.log2(beta) if beta else -math.inf for beta in betas]
    adam_kernel[len(chunks),](
        weights, gradients, means, squares, weights if copies is None else copies, chunks, steps, factor, rate,
        BETA_1=betas[0], BETA_2=betas[1], LOG2_BETA_1=log2_betas[0], LOG2_BETA_2=log2_betas[1], EPS=eps,
        DECAY=decay, IS_DECOUPLED=is_decoupled, CASTS=copies is not None, IS_ALIGNED=_is_aligned(weights), CHUNK=CHUNK,
        num_warps=WARPS,
    )  # fmt: skip


@torch.library.custom_op("txl::lamb_moments", mutates_args=("means", "squares"))
def lamb_moments(
    weights: Tensor, gradients: Tensor, means: Tensor, squares: Tensor, chunks: Tensor, firsts: Tensor, factor: Tensor,
    betas: list[float], eps: float, decay: float,
) -> Tensor:  # fmt: skip
    """Update the moments as LAMB does; return the sums of squares (p, 2) of weights and of their updates.

    `firsts` (p + 1,) are the numbers of the first chunk of each parameter, and that of all chunks. See `adam`.
    """
    sums = weights.new_empty(len(chunks), 2)
    totals = _totals(weights, gradients, means, squares, chunks, firsts)
    lamb_moments_kernel[len(chunks),](
        weights, gradients, means, squares, sums, chunks, factor,
        BETA_1=betas[0], BETA_2=betas[1], EPS=eps, DECAY=decay, IS_ALIGNED=_is_aligned(weights), CHUNK=CHUNK,
        num_warps=WARPS,
    )  # fmt: skip
    sum_kernel[len(totals),](sums, firsts, totals, CHUNKS=CHUNKS_OF_SUM, num_warps=WARPS)
    return totals


@lamb_moments.register_fake
def _totals(
    weights: Tensor, gradients: Tensor, means: Tensor, squares: Tensor, chunks: Tensor, firsts: Tensor, *_: Any
) -> Tensor:
    return weights.new_empty(len(firsts) - 1, 2)


@torch.library.custom_op("txl::lamb", mutates_args=("weights", "copies"))
def lamb(
    weights: Tensor, means: Tensor, squares: Tensor, copies: Tensor | None, chunks: Tensor, totals: Tensor,
    rate: Tensor, eps: float, decay: float, max_norm: float,
) -> None:  # fmt: skip
    """Update weights (n,) by LAMB's rule, given the sums of `lamb_moments`; see there."""
    lamb_kernel[len(chunks),](
        weights, means, squares, weights if copies is None else copies, chunks, totals, rate,
        EPS=eps, DECAY=decay, MAX_NORM=max_norm, CASTS=copies is not None, IS_ALIGNED=_is_aligned(weights), CHUNK=CHUNK,
        num_warps=WARPS,
    )  # fmt: skip


def _is_aligned(buffer: Tensor) -> bool:
    """Return True if all chunks of a buffer (n,) end at multiples of UNIT."""
    return buffer.numel() % UNIT == 0
