"""Masks of dropout: rates, independence, reproducibility. ReLU with dropout in one operation equals the two modules."""

import functools

import pytest
import torch

from txlcli.core.kernels.dropout import keep_mask
from txlcli.core.model.backends import FAST, make_compiled_backend
from txlcli.core.model.dropout import Dropout, WordDropout

CPU = torch.device("cpu")


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_the_dropped_share_is_the_requested_one(rate):
    torch.manual_seed(3)
    kept = keep_mask(torch.Size((701, 997)), rate, CPU)
    deviation = (rate * (1 - rate) / kept.numel()) ** 0.5
    assert abs(1 - rate - kept.double().mean().item()) < 4 * deviation


@pytest.mark.parametrize("lag", [1, 2, 3, 4, 5])
def test_neighbouring_entries_are_independent(lag):
    torch.manual_seed(5)
    kept = keep_mask(torch.Size((500_009,)), 0.5, CPU).double() - 0.5
    correlation = (kept[:-lag] * kept[lag:]).mean().item() / 0.25
    assert abs(correlation) < 4 / 500_009**0.5


@pytest.mark.parametrize(("rate", "kept"), [(0.0, 1.0), (1e-9, 1.0), (1 - 1e-9, 0.0)])
def test_a_rate_at_either_end_keeps_all_or_nothing(rate, kept):
    assert keep_mask(torch.Size((1009,)), rate, CPU).double().mean() == kept


def test_the_generator_determines_the_mask_and_advances():
    torch.manual_seed(7)
    first, second = (keep_mask(torch.Size((101,)), 0.5, CPU) for _ in range(2))
    torch.manual_seed(7)
    assert torch.equal(first, keep_mask(torch.Size((101,)), 0.5, CPU))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_relu_dropout_and_its_gradient_equal_dropout_of_relu(variational, dtype, rate):
    given = torch.randn(7, 11, 5, dtype=dtype)
    given[0, 0] = 0.0
    weight, dropout, results = torch.randn(7, 11, 5, dtype=dtype), Dropout(rate, variational=variational), []
    for function in (dropout.after_relu, lambda hidden, dropout=dropout: dropout(hidden.relu())):
        leaf = given.clone().requires_grad_()
        torch.manual_seed(3)
        out = function(leaf * 1)  # a leaf must not be overwritten
        (grad,) = torch.autograd.grad((out * weight).sum(), leaf)
        results.append((out.detach(), grad))
    torch.testing.assert_close(*results, rtol=torch.finfo(dtype).eps * 2, atol=0)


@pytest.mark.parametrize(("rate", "variational"), [(0.0, False), (0.5, False), (0.5, True)])
def test_a_compiled_activation_passes_on_its_gradient(rate, variational):
    """PyTorch 2.11 lost it."""
    torch.compiler.reset()
    hidden = torch.randn(7, 11, 5, requires_grad=True)
    backend = make_compiled_backend(FAST, joins_heads=False, pads_rows=False)
    activation = functools.partial(backend.relu_dropout, rate=rate, variational=variational)
    out = torch.compile(activation, fullgraph=True, backend="eager")(hidden)
    (grad,) = torch.autograd.grad(out.sum(), hidden)
    assert 0 < out.count_nonzero() < out.numel()
    torch.testing.assert_close(grad, torch.where(out > 0, 1 / (1 - rate), 0.0))


def test_word_dropout_is_compiled():
    torch.compiler.reset()
    drop = torch.compile(WordDropout(0.5, 101), fullgraph=True, backend="eager")
    out = drop(torch.ones(3, 17, 5), torch.arange(51).view(3, 17))
    assert out.unique().tolist() == [torch.tensor(1e-12).item(), 2]


def test_relu_dropout_saves_only_its_result():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, id):
        out = Dropout(0.5).after_relu(torch.randn(7, 11, requires_grad=True) * 1)
    assert [tensor.data_ptr() for tensor in kept if tensor.dim()] == [out.data_ptr()]
