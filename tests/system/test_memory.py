"""What PyTorch and Python raise where there is no room, and what they raise otherwise."""

import pytest
import torch

from txlcli.system.memory import is_out_of_memory


def raised(work):
    with pytest.raises(Exception) as caught:  # noqa: PT011 - which one is what the tests are about
        work()
    return caught.value


def test_a_tensor_that_no_memory_holds():
    error = raised(lambda: torch.empty(1 << 50))
    assert not isinstance(error, torch.OutOfMemoryError | MemoryError)  # a plain RuntimeError
    assert is_out_of_memory(error)


def test_a_list_that_no_memory_holds():
    assert is_out_of_memory(raised(lambda: [0] * (1 << 60)))


def test_cuda_says_it_by_the_kind_of_error():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_other_errors_are_no_lack_of_memory():
    assert not is_out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))
    assert not is_out_of_memory(KeyError("memory"))
