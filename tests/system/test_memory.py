"""Errors of PyTorch and Python that mean that memory ran out are recognized."""

import pytest
import torch

from txlcli.system.memory import is_out_of_memory


def raised(work):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the tests say which one it is
        work()
    return caught.value


def test_a_tensor_that_does_not_fit_into_memory():
    error = raised(lambda: torch.empty(1 << 50))
    assert not isinstance(error, torch.OutOfMemoryError | MemoryError)  # a plain RuntimeError
    assert is_out_of_memory(error)


def test_a_list_that_does_not_fit_into_memory():
    assert is_out_of_memory(raised(lambda: [0] * (1 << 60)))


def test_cuda_errors_are_recognized_by_their_class():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_other_errors_are_not_out_of_memory():
    assert not is_out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))
    assert not is_out_of_memory(KeyError("memory"))
