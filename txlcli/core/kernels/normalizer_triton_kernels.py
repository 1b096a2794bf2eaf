"""The kernels of `normalizer_triton`, which explains them.

Axes: t tokens and c ids of a block of logits (t, c), whose rows lie `stride` elements apart.
"""

import triton
import triton.language as tl

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


@triton.jit(do_not_specialize=("ids", "first_id"))
def accumulate_kernel(logits_base, total_base, logit_base, chosen_base, ids, first_id, stride, IDS: tl.constexpr):
    """Add the logits of one token to its log normalizer, and note that of its chosen id, if it is in the block."""
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
    before = tl.load(total_base + token) * LOG2_E
    top = tl.maximum(tl.max(largest, 0), before)
    total_of_all = tl.sum(total * tl.exp2(largest - top), 0) + tl.exp2(before - top)
    tl.store(total_base + token, (top + tl.log2(total_of_all)) * LN_2)
    column = tl.load(chosen_base + token) - first_id
    if (column >= 0) & (column < ids):
        tl.store(logit_base + token, tl.load(row + column).to(tl.float32))


@triton.jit(do_not_specialize=("tokens", "ids", "first_id"))
def gradient_kernel(
    logits_base, total_base, grad_total_base, grad_logit_base, chosen_base, sums_base, tokens, ids, first_id, stride,
    TOKENS: tl.constexpr, IDS: tl.constexpr,
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
