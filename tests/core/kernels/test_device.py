"""Devices and number formats: what is picked, what is refused."""

from pathlib import Path

import pytest
import torch

from txlcli.core.kernels import device
from txlcli.core.kernels.device import autocast, check_free_memory, check_precision, describe, pick_device
from txlcli.errors import UsageError
from txlcli.system.memory import is_out_of_memory

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
with_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
without_cuda = pytest.mark.skipif(torch.cuda.is_available(), reason="a CUDA device is here")


def product_dtype(device, precision):
    matrix = torch.ones(2, 2, device=device)
    with autocast(device, precision):
        return (matrix @ matrix).dtype


def test_the_cpu_is_always_there():
    assert pick_device("cpu") == CPU
    assert describe(CPU).startswith("cpu (")


@without_cuda
def test_auto_takes_the_cpu_where_there_is_no_cuda():
    assert pick_device("auto") == CPU


@without_cuda
def test_cuda_is_refused_where_there_is_none():
    with pytest.raises(UsageError, match=r"^--device cuda: PyTorch finds no CUDA device here; use --device cpu$"):
        pick_device("cuda")


@with_cuda
def test_auto_takes_cuda_where_there_is_one():
    assert pick_device("auto") == pick_device("cuda") == CUDA
    assert describe(CUDA)


def test_fp16_needs_cuda():
    with pytest.raises(UsageError, match=r"^precision fp16 needs a CUDA device; use bf16 or fp32 on the CPU$"):
        check_precision("fp16", CPU)
    check_precision("fp16", CUDA)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_cpu_multiplies_fp32_and_bf16(precision):
    check_precision(precision, CPU)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_matrices_are_multiplied_in_the_precision_asked_for(precision, dtype):
    assert product_dtype(CPU, precision) == dtype


@with_cuda
def test_cuda_multiplies_fp16():
    assert product_dtype(CUDA, "fp16") == torch.float16


def test_more_than_a_cpu_has_free_is_refused(monkeypatch):
    monkeypatch.setattr(device, "_free_bytes", lambda: 3 << 30)
    check_free_memory(3 << 30, CPU)
    check_free_memory(7 << 30, CUDA)  # which says so itself
    with pytest.raises(MemoryError, match=r"^tried to allocate 3\.5 GiB, of 3\.0 GiB that are free$") as caught:
        check_free_memory(7 << 29, CPU)
    assert is_out_of_memory(caught.value)


def test_where_nothing_says_what_is_free_all_is_tried(monkeypatch):
    monkeypatch.setattr(device, "_free_bytes", lambda: None)
    check_free_memory(1 << 60, CPU)


@pytest.mark.skipif(not Path("/proc/meminfo").exists(), reason="only Linux says it so")
def test_what_is_free_is_read_from_linux():
    assert check_free_memory(1, CPU) is None
    with pytest.raises(MemoryError):
        check_free_memory(1 << 60, CPU)
