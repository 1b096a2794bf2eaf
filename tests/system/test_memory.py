"""Errors of PyTorch and Python that mean that memory ran out are recognized."""

import pytest
import torch

from txlcli.system.memory import is_out_of_memory, requested_size


@pytest.mark.parametrize("work", [lambda: torch.empty(1 << 50), lambda: [0] * (1 << 60)], ids=["tensor", "list"])
def test_what_does_not_fit_into_memory_is_recognized(work):
    with pytest.raises((RuntimeError, MemoryError)) as caught:  # of a tensor, a plain RuntimeError
        work()
    assert not isinstance(caught.value, torch.OutOfMemoryError)
    assert is_out_of_memory(caught.value)


@pytest.mark.parametrize(
    "message", ["could not create a memory object", "could not execute a primitive", "std::bad_alloc"]
)
def test_errors_of_libraries_that_do_not_say_what_they_lack(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError(f"{message} descriptor"))
    assert not is_out_of_memory(ValueError(message))


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
