"""The sum without a loop is the loop, in values and in derivatives."""

import pytest
import torch

from txlcli.core.kernels.gated_sum import gated_sum

B, W = 3, 5
LENGTHS = [1, 2, 3, 4, 5, 7, 8, 13, 64, 67]


def draw(*shape, seed=1):
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def loop(keep, new, before):
    sums = []
    for step in range(keep.shape[1]):
        before = keep[:, step] * before + new[:, step]
        sums.append(before)
    return torch.stack(sums, dim=1)


def with_gradients(function, *inputs):
    """The output, and the gradient of a sum in which every entry of it has another weight."""
    leaves = [value.clone().requires_grad_() for value in inputs]
    outputs = function(*leaves)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    sum((output * draw(*output.shape, seed=9)).sum() for output in outputs).backward()
    return [*(output.detach() for output in outputs), *(leaf.grad for leaf in leaves)]


def assert_all_close(found, expected, tolerance=1e-10):
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        assert (one - other).abs().max() <= tolerance * (1 + other.abs().max())


@pytest.mark.parametrize("length", LENGTHS)
def test_the_sum_without_a_loop_is_the_loop_and_so_are_its_gradients(length):
    inputs = draw(B, length, W).sigmoid(), draw(B, length, W, seed=2), draw(B, W, seed=3)
    assert_all_close(with_gradients(gated_sum, *inputs), with_gradients(loop, *inputs))


@pytest.mark.parametrize("gate", [0.0, 1.0, 1e-200])
def test_a_gate_that_is_shut_or_open_is_exact(gate):
    # Formulas that divide by the product of the gates fail here.
    keep = draw(B, 13, W).sigmoid()
    keep[:, 4:9] = gate
    inputs = keep, draw(B, 13, W, seed=2), draw(B, W, seed=3)
    found = with_gradients(gated_sum, *inputs)
    assert all(value.isfinite().all() for value in found)
    assert_all_close(found, with_gradients(loop, *inputs))


def test_a_long_sum_in_single_precision_stays_near_the_exact_one():
    keep, new, before = draw(B, 1000, W).mul(3).sigmoid(), draw(B, 1000, W, seed=2), draw(B, W, seed=3)
    found = gated_sum(keep.float(), new.float(), before.float())
    assert found.dtype == torch.float32
    assert (found - loop(keep, new, before)).abs().max() < 1e-4


def test_the_inputs_of_the_sum_stay_as_they_are():
    inputs = draw(B, 6, W).sigmoid(), draw(B, 6, W, seed=2), draw(B, W, seed=3)
    copies = [value.clone() for value in inputs]
    with_gradients(gated_sum, *inputs)
    gated_sum(*inputs)
    assert all(value.equal(copy) for value, copy in zip(inputs, copies, strict=True))
