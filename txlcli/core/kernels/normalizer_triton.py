"""Row kernels of the softmax normalizer for CUDA: 12 bytes per 16-bit logit instead of 58.

The product writes a block of logits (2 bytes each). One kernel reads them once for the log normalizers (2). In the
backward pass another kernel overwrites them by their gradients (4), which two products read (4); it also adds up the
gradient of the bias, in parts of TOKENS tokens, without atomic additions.

Importing this module needs Triton.

Axes: t tokens and c ids of a block of logits (t, c), whose rows lie `stride` elements apart.
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language import constexpr

from txlcli.core.kernels.normalizer_rows import RowOperations

LOG2_E = constexpr(1.4426950408889634)
LN_2 = constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=("ids", "first_id"))
def accumulate_kernel(logits_base, total_base, logit_base, chosen_base, ids, first_id, stride, IDS: constexpr):
    """Add the logits of one token to its log normalizer, and note the logit of its chosen id, if it is in the block."""
    token = tl.program_id(0)
    row = logits_base + token.to(tl.int64) * stride
    largest = tl.full((IDS,), float("-inf"), tl.float32)
    total = tl.zeros((IDS,), tl.float32)  # column by column, so that one sum over columns is enough
    for first in range(0, ids, IDS):
        columns = first + tl.arange(0, IDS)
        logit = tl.load(row + columns, mask=columns < ids, other=float("-inf")).to(tl.float32) * LOG2_E
        new_largest = tl.maximum(largest, logit)
        shift = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        total = total * tl.exp2(largest - shift) + tl.exp2(logit - shift)
        largest = new_largest
    before = tl.load(total_base + token, mask=first_id > 0, other=float("-inf")) * LOG2_E
    top = tl.maximum(tl.max(largest, 0), before)
    total_of_all = tl.sum(total * tl.exp2(largest - top), 0) + tl.exp2(before - top)
    tl.store(total_base + token, (top + tl.log2(total_of_all)) * LN_2)
    column = tl.load(chosen_base + token) - first_id
    if (column >= 0) & (column < ids):
        tl.store(logit_base + token, tl.load(row + column).to(tl.float32))


@triton.jit(do_not_specialize=("tokens", "ids", "first_id"))
def gradient_kernel(
    logits_base, total_base, grad_total_base, grad_logit_base, chosen_base, sums_base, tokens, ids, first_id, stride,
    TOKENS: constexpr, IDS: constexpr,
):  # fmt: skip
    """Overwrite the logits of TOKENS tokens and IDS ids by their gradients; store the sums over these tokens."""
    columns = tl.program_id(0) * IDS + tl.arange(0, IDS)
    first_token = tl.program_id(1) * TOKENS
    row = logits_base + first_token.to(tl.int64) * stride
    sums = tl.zeros((IDS,), tl.float32)
    for token in range(first_token, tl.minimum(first_token + TOKENS, tokens)):
        logit = tl.load(row + columns, mask=columns < ids, other=float("-inf")).to(tl.float32)
        grad = tl.exp2((logit - tl.load(total_base + token)) * LOG2_E) * tl.load(grad_total_base + token)
        chosen = tl.load(chosen_base + token) - first_id
        grad += tl.where(columns == chosen, tl.load(grad_logit_base + token), 0.0)
        tl.store(row + columns, grad.to(logits_base.dtype.element_ty), mask=columns < ids)
        sums += grad
        row += stride
    tl.store(sums_base + tl.program_id(1).to(tl.int64) * ids + columns, sums, mask=columns < ids)


IDS_OF_ROW = 4096
"""Ids that a program reads at once for the normalizers."""
TOKENS = 64
"""Tokens of a program's part of the gradient."""
IDS_OF_TILE = 1024
"""Ids of a program's part of the gradient."""


@torch.library.custom_op("txl::accumulate", mutates_args=("total", "logit"))
def accumulate(logits: Tensor, chosen: Tensor, first_id: int, total: Tensor, logit: Tensor) -> None:
    """Add a block of logits to the log normalizers; see `RowOperations`."""
    if logits.numel():
        accumulate_kernel[len(logits),](
            logits, total, logit, chosen, logits.shape[1], first_id, logits.stride(0), IDS=IDS_OF_ROW, num_warps=8
        )


@torch.library.custom_op("txl::logits_backward", mutates_args=("logits",))
def logits_backward(
    logits: Tensor, chosen: Tensor, first_id: int, total: Tensor, grad_total: Tensor, grad_logit: Tensor
) -> Tensor:
    """Overwrite a block of logits by their gradients; return the sums over each TOKENS tokens."""
    tokens, count = logits.shape
    sums = _sums(logits)
    if logits.numel():
        gradient_kernel[triton.cdiv(count, IDS_OF_TILE), len(sums)](
            logits, total, grad_total, grad_logit, chosen, sums, tokens, count, first_id, logits.stride(0),
            TOKENS=TOKENS, IDS=IDS_OF_TILE, num_warps=4,
        )  # fmt: skip
    return sums


def _sums(logits: Tensor, *_: Any) -> Tensor:
    """Return memory for the sums of logits (t, c) over each TOKENS tokens."""
    return logits.new_empty(triton.cdiv(logits.shape[0], TOKENS), logits.shape[1], dtype=torch.float32)


logits_backward.register_fake(_sums)


class TritonRows(RowOperations):
    """Row operations by Triton; sums are in float32."""

    spends_logits = True

    def accumulate(self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, logit: Tensor) -> None:
        accumulate(logits, chosen, ids.start, total, logit)

    def gradient(
        self, logits: Tensor, chosen: Tensor, ids: slice, total: Tensor, grad_total: Tensor, grad_logit: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Overwrite logits (t, c) by their gradients; return them and their sums over tokens (c,)."""
        sums = logits_backward(logits, chosen, ids.start, total, grad_total.contiguous(), grad_logit.contiguous())
        return logits, sums.sum(dim=0)
