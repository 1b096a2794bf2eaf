"""Errors of PyTorch and Python that mean that memory ran out are recognized."""

import pytest
import torch

from txlcli.system.memory import format_size, is_out_of_memory, requested_size


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


@pytest.mark.parametrize(
    "message", ["could not create a memory object", "could not execute a primitive", "std::bad_alloc"]
)
def test_errors_of_libraries_that_do_not_say_what_they_lack(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError(f"{message} descriptor"))
    assert not is_out_of_memory(ValueError(message))


def test_cuda_errors_are_recognized_by_their_class():
    assert is_out_of_memory(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."))


def test_other_errors_are_not_out_of_memory():
    assert not is_out_of_memory(raised(lambda: torch.ones(2) @ torch.ones(3)))
    assert not is_out_of_memory(KeyError("memory"))


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("CUDA out of memory. Tried to allocate 2.00 GiB.", " (tried to allocate 2.00 GiB)"),
        ("can't allocate memory: you tried to allocate 3221225472 bytes.", " (tried to allocate 3.00 GiB)"),
        ("can't allocate memory: you tried to allocate 1572864 bytes.", " (tried to allocate 1.5 MiB)"),
        ("Unable to allocate 7.5 MiB for an array", " (tried to allocate 7.5 MiB)"),
        ("", ""),
    ],
)
def test_the_size_of_a_request_is_stated_in_a_readable_unit(message, text):
    assert requested_size(MemoryError(message)) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0.0 MiB"), (5 << 19, "2.5 MiB"), (1 << 30, "1.00 GiB"), (3 << 40, "3,072.00 GiB")]
)
def test_a_size_is_formatted_in_a_suitable_unit(size, text):
    assert format_size(size) == text
