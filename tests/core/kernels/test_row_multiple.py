"""Rows aligned for the fast products of CUDA: another layout in memory, equal results.

These tests lay out rows on a CPU as for CUDA in 16 bits. They cannot show the results of a GPU.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances.
"""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from tests.core.attention_cases import draw
from tests.core.builders import draw_tokens, small_model
from tests.core.reading.test_decoder import decode
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.modes import as_on_gpu, use_row_multiple
from txlcli.core.model.losses import Objective

B, L, M, H = 2, 5, 11, 3
K = M + L
MULTIPLE = 8


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(("columns", "outputs"), [(13, 17), (16, 17), (13, 24), (16, 24)])
def test_aligned_products_give_the_output_and_gradients_of_plain_ones(columns, outputs, with_bias):
    rows, weight, bias = (draw(*size).requires_grad_() for size in ((B, L, columns), (outputs, columns), (outputs,)))
    given = [rows, weight, bias] if with_bias else [rows, weight]
    expected = F.linear(*given)
    with use_row_multiple(MULTIPLE):
        found = linear(*given)
    weights = draw(*expected.shape, seed=9)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    wanted = torch.autograd.grad((expected * weights).sum(), given)
    grads = torch.autograd.grad((found * weights).sum(), given)
    torch.testing.assert_close(grads, wanted, rtol=0, atol=1e-12)


ODD = {"d_model": 14, "n_heads": 3, "d_head": 5, "d_inner": 19}


def gradients(model, *, in_bf16):
    """The mean loss of the second of two segments, and the gradient of each parameter."""
    first, second, targets = draw_tokens(B, 3 * (L + M)).split(L + M, dim=1)
    second, targets = second[:, :L], targets[:, :L]
    with torch.autocast("cpu", torch.bfloat16, enabled=in_bf16):
        memory = model(first, model.first_memory(B, M), mem_len=M)[1]
        loss = model.objective(second, targets, memory, Objective(mem_len=M))[0]
    loss.backward()
    return loss.detach(), {name: parameter.grad for name, parameter in model.named_parameters()}


@pytest.mark.parametrize("same_length", ["off", "m"])
@pytest.mark.parametrize("max_distance", [None, 3])
def test_aligned_rows_do_not_change_a_decoder(same_length, max_distance):
    model, tokens = small_model(memory_start="zeros"), draw_tokens(B, 53)
    limits = {"seg_len": L, "mem_len": M, "same_length": same_length, "max_distance": max_distance}
    expected = decode(model, tokens, **limits)
    with use_row_multiple(MULTIPLE):
        torch.testing.assert_close(decode(model, tokens, **limits), expected, rtol=0, atol=1e-12)


PRODUCTS = ("aten::mm", "aten::addmm")


class Operands(TorchDispatchMode):
    """Collects the operands of a dtype's products whose rows, or columns if these are contiguous, are not aligned."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype
        self.unaligned = []
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in PRODUCTS and args[-1].dtype == self.dtype:
            operands = [*args[-2:], *([kwargs["out"]] if kwargs and "out" in kwargs else [])]
            self.count += len(operands)
            self.unaligned += [(func, one.shape, one.stride()) for one in operands if one.numel() and not _aligned(one)]
        return func(*args, **(kwargs or {}))


def _aligned(matrix):
    narrow, wide = sorted(matrix.stride())
    return matrix.storage_offset() % MULTIPLE == 0 and narrow == 1 and wide % MULTIPLE == 0


@pytest.mark.parametrize("changed", [{}, {"cutoffs": (7,), "div_val": 2}, {"norm": "pre", "tie_embeddings": False}])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.bfloat16, 0.05)], ids=str)
def test_products_of_a_training_step_read_and_write_aligned_rows(changed, dtype, tolerance):
    """With the loss and the gradients of rows that are not aligned."""
    is_exact = dtype == torch.float64
    model = small_model(dtype=dtype if is_exact else torch.float32, **ODD, **changed)
    expected, expected_grads = gradients(copy.deepcopy(model), in_bf16=not is_exact)
    with as_on_gpu(), use_row_multiple(MULTIPLE), Operands(dtype) as operands:
        found, grads = gradients(model, in_bf16=not is_exact)
    assert operands.count > 100
    assert not operands.unaligned
    torch.testing.assert_close(found, expected, rtol=tolerance / 5, atol=0)
    for name, gradient in grads.items():
        assert (gradient - expected_grads[name]).norm() <= tolerance * expected_grads[name].norm(), name
