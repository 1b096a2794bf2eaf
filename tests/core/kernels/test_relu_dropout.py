"""ReLU with dropout in one operation equals the two modules."""

import pytest
import torch

from txlcli.core.kernels.relu_dropout import relu_dropout
from txlcli.core.model.dropout import Dropout


@pytest.mark.parametrize("variational", [True, False])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rate", [0.0, 0.1, 0.9])
def test_relu_dropout_and_its_gradient_equal_dropout_of_relu(variational, dtype, rate):
    given = torch.randn(7, 11, 5, dtype=dtype)
    given[0, 0] = 0.0
    weight, dropout, results = torch.randn(7, 11, 5, dtype=dtype), Dropout(rate, variational=variational), []
    for function in (relu_dropout, lambda hidden, dropout: dropout(hidden.relu())):
        leaf = given.clone().requires_grad_()
        torch.manual_seed(3)
        out = function(leaf * 1, dropout)  # a leaf must not be overwritten
        (grad,) = torch.autograd.grad((out * weight).sum(), leaf)
        results.append((out.detach(), grad))
    torch.testing.assert_close(*results, rtol=torch.finfo(dtype).eps * 2, atol=0)


def test_relu_dropout_saves_only_its_result():
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: kept.append(tensor) or tensor, id):
        out = relu_dropout(torch.randn(7, 11, requires_grad=True) * 1, Dropout(0.5))
    assert [tensor.data_ptr() for tensor in kept if tensor.dim()] == [out.data_ptr()]
