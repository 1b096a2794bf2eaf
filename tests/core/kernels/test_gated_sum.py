"""The parallel gated sum equals the loop over time, in values and in gradients."""

import pytest
import torch

from tests.core.attention_cases import draw
from txlcli.core.kernels.gated_sum import gated_sum

B, W = 3, 5
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 13, 64, 67]


def loop(keep, new, before):
    sums = []
    for step in range(keep.shape[1]):
        before = keep[:, step] * before + new[:, step]
        sums.append(before)
    return torch.stack(sums, dim=1)


def with_gradients(function, *inputs):
    """Return the output and the gradients of a weighted sum of it, in which every entry has its own weight."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((output * draw(*output.shape, seed=9)).sum() for output in outputs).backward()
    return [*(output.detach() for output in outputs), *(leaf.grad for leaf in leaves)]


def assert_all_close(given, expected, tolerance=1e-10):
    for one, other in zip(given, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * (1 + other.abs().max())


@pytest.mark.parametrize("length", LENGTHS)
def test_the_gated_sum_and_its_gradients_equal_the_loop(length):
    inputs = draw(B, length, W).sigmoid(), draw(B, length, W, seed=2), draw(B, W, seed=5)
    assert_all_close(with_gradients(gated_sum, *inputs), with_gradients(loop, *inputs))


@pytest.mark.parametrize("gate", [0.0, 1.0, 1e-200])
def test_closed_and_open_gates_are_exact(gate):
    # Formulas that divide by the product of the gates fail here.
    keep = draw(B, 13, W).sigmoid()
    keep[:, 4:9] = gate
    inputs = keep, draw(B, 13, W, seed=2), draw(B, W, seed=5)
    given = with_gradients(gated_sum, *inputs)
    assert all(value.isfinite().all() for value in given)
    assert_all_close(given, with_gradients(loop, *inputs))


def test_a_long_sum_in_fp32_is_close_to_the_exact_one():
    keep, new, before = draw(B, 1000, W).mul(3).sigmoid(), draw(B, 1000, W, seed=2), draw(B, W, seed=5)
    given = gated_sum(keep.float(), new.float(), before.float())
    assert given.dtype == torch.float32
    assert (given - loop(keep, new, before)).abs().max() < 1e-4
