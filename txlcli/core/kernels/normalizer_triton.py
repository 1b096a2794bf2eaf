"""Row kernels of the softmax normalizer for CUDA: 12 bytes per 16-bit logit instead of 58.

The product writes the logits (2 bytes each). One kernel reads them once for the log normalizers (2). Another kernel
overwrites them by their gradients (4), which two products read (4); it also adds up the gradient of the bias, in parts
of TOKENS tokens, without atomic additions. Threads access ALIGN neighbors at once, so the padding between rows is read,
and overwritten with zeros.

Importing this module needs Triton.

Axes: t tokens and n ids of logits (t, n), whose rows lie `stride` elements apart.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from txlcli.core.kernels.alignment_triton import aligned, alignment_of

LOG2_E = constexpr(1.4426950408889634)
LN_2 = constexpr(0.6931471805599453)


@triton.jit
def _load(row, columns, ids, ALIGN: constexpr):
    """Load logits of a row; minus infinity for columns without an id."""
    logits = tl.load(row + columns, mask=columns < aligned(ids + ALIGN - 1, ALIGN), other=float("-inf"))
    return tl.where(columns < ids, logits.to(tl.float32), float("-inf"))


@triton.jit(do_not_specialize=("ids",))
def accumulate_kernel(
    logits_base, others_base, total_base, losses_base, chosen_base, ids, stride, IDS: constexpr, ALIGN: constexpr,
):  # fmt: skip
    """Add the logits of one token to its log normalizer, and compute its loss."""
    token = tl.program_id(0)
    row = logits_base + token.to(tl.int64) * aligned(stride, ALIGN)
    largest = tl.full((IDS,), float("-inf"), tl.float32)
    total = tl.zeros((IDS,), tl.float32)  # column by column, so that one sum over columns is enough
    for first in range(0, ids, IDS):
        columns = first + tl.arange(0, IDS)
        logit = _load(row, columns, ids, ALIGN) * LOG2_E
        new_largest = tl.maximum(largest, logit)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp2(largest - shift) + tl.exp2(logit - shift)
        largest = new_largest
    others = tl.load(others_base + token) * LOG2_E
    top = tl.maximum(tl.max(largest, 0), others)
    total_of_all = tl.sum(total * tl.exp2(largest - top), 0) + tl.exp2(others - top)
    log_total = (top + tl.log2(total_of_all)) * LN_2
    tl.store(total_base + token, log_total)
    column = tl.load(chosen_base + token)
    of_chosen = tl.load(row + column, mask=(column >= 0) & (column < ids), other=0.0).to(tl.float32)
    tl.store(losses_base + token, log_total - of_chosen)


@triton.jit(do_not_specialize=("tokens", "ids"))
def gradient_kernel(
    logits_base, total_base, weights_base, chosen_base, sums_base, tokens, ids, stride,
    TOKENS: constexpr, IDS: constexpr, ALIGN: constexpr,
):  # fmt: skip
    """Overwrite the logits of TOKENS tokens and IDS ids by their gradients; store the sums over these tokens."""
    columns = tl.program_id(0) * IDS + tl.arange(0, IDS)
    first_token = tl.program_id(1) * TOKENS
    stride = aligned(stride, ALIGN)
    row = logits_base + first_token.to(tl.int64) * stride
    inside = columns < ids
    sums = tl.zeros((IDS,), tl.float32)
    for token in range(first_token, tl.minimum(first_token + TOKENS, tokens)):
        probability = tl.exp2((_load(row, columns, ids, ALIGN) - tl.load(total_base + token)) * LOG2_E)
        is_chosen = inside & (columns == tl.load(chosen_base + token))
        grad = (probability - tl.where(is_chosen, 1.0, 0.0)) * tl.load(weights_base + token)
        tl.store(row + columns, grad.to(logits_base.dtype.element_ty), mask=columns < aligned(ids + ALIGN - 1, ALIGN))
        sums += grad
        row += stride
    tl.store(sums_base + tl.program_id(1).to(tl.int64) * ids + columns, sums, mask=inside)


IDS_OF_ROW = 4096
"""Ids that a program reads at once for the normalizers."""
TOKENS = 64
"""Tokens of a program's part of the gradient."""
IDS_OF_TILE = 1024
"""Ids of a program's part of the gradient."""


@torch.library.custom_op("txl::accumulate", mutates_args=())
def accumulate(logits: Tensor, chosen: Tensor, others: Tensor) -> tuple[Tensor, Tensor]:
    """Return the losses (t,) and the log normalizers of all logits (t,); see `normalizer.row_losses`."""
    losses = torch.empty_like(others)
    total = torch.empty_like(others)
    if logits.numel():
        accumulate_kernel[len(logits),](
            logits, others, total, losses, chosen, logits.shape[1], logits.stride(0),
            IDS=IDS_OF_ROW, ALIGN=alignment_of(logits.stride(0)), num_warps=8,
        )  # fmt: skip
    return losses, total


accumulate.register_fake(lambda _, __, others: (torch.empty_like(others), torch.empty_like(others)))


@torch.library.custom_op("txl::logits_backward", mutates_args=("logits",))
def logits_backward(logits: Tensor, chosen: Tensor, total: Tensor, weights: Tensor) -> Tensor:
    """Overwrite logits by their gradients; return the sums over each TOKENS tokens."""
    tokens, count = logits.shape
    sums = _sums(logits)
    if logits.numel():
        gradient_kernel[triton.cdiv(count, IDS_OF_TILE), len(sums)](
            logits, total, weights, chosen, sums, tokens, count, logits.stride(0),
            TOKENS=TOKENS, IDS=IDS_OF_TILE, ALIGN=alignment_of(logits.stride(0)), num_warps=4,
        )  # fmt: skip
    return sums


def _sums(logits: Tensor, *_: Any) -> Tensor:
    """Return memory for the sums of logits (t, n) over each TOKENS tokens."""
    return logits.new_empty(triton.cdiv(logits.shape[0], TOKENS), logits.shape[1], dtype=torch.float32)


logits_backward.register_fake(_sums)


def row_losses(
    logits: Tensor, chosen: Tensor, others: Tensor, weights: Tensor | None
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """Do what `normalizer.row_losses` does; sums are in float32."""
    losses, total = accumulate(logits, chosen, others)
    if weights is None:
        return losses, total, None
    return losses, total, (logits, logits_backward(logits, chosen, total, weights).sum(dim=0))
