"""Modes: what holds for everything that is computed inside a `with` block. Functions of `device` read some of them."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import TypeVar

import torch

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""dtype of the operands of matrix products in each precision."""

Value = TypeVar("Value")

_memory_is_unlimited = ContextVar("_memory_is_unlimited", default=False)
_as_gpu = ContextVar("_as_gpu", default=False)
_row_multiple: ContextVar[int | None] = ContextVar("_row_multiple", default=None)


@contextlib.contextmanager
def setting(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Give a context variable this value inside the block."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


def unlimited_memory() -> AbstractContextManager[None]:
    """Let tensors without data have any size inside this block."""
    return setting(_memory_is_unlimited, True)


def memory_is_unlimited() -> bool:
    """Return True inside `unlimited_memory`."""
    return _memory_is_unlimited.get()


def as_on_gpu() -> AbstractContextManager[None]:
    """Let a CPU keep for the backward pass what a GPU keeps, inside this block: to forecast the memory of a GPU.

    It then scores a whole batch at once, and keeps autocast's casts of weights.
    """
    return setting(_as_gpu, True)


def computes_as_gpu(device: torch.device) -> bool:
    """Return True on GPUs, and inside `as_on_gpu`."""
    return device.type != "cpu" or _as_gpu.get()


def use_row_multiple(multiple: int) -> AbstractContextManager[None]:
    """Lay out rows in this multiple inside this block, on any device."""
    return setting(_row_multiple, multiple)


def chosen_row_multiple() -> int | None:
    """Return the multiple of `use_row_multiple`; None outside of it."""
    return _row_multiple.get()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Compute matrix products in `precision` inside this block, which may be entered again.

    Their gradients are not computed here: see `float32_products`.
    """
    if DTYPES[precision] == torch.float32:
        return float32_products(device, precision)
    return torch.autocast(device.type, dtype=DTYPES[precision])


def float32_products(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Multiply float32 in this precision inside this block, also in a backward pass, if the device has a choice."""
    if device.type != "cuda" or DTYPES[precision] != torch.float32:
        return contextlib.nullcontext()
    return _Float32Products(tf32=precision == "tf32")


class _Float32Products(AbstractContextManager[None]):
    """Let CUDA's libraries multiply float32 in TF32 inside this block, or not; restore the setting afterwards.

    PyTorch lets cuDNN's LSTM use TF32 by default, other products not. The older names of these settings are used here:
    where the newer ones are set alone, PyTorch raises an error when it reads an older one, as torch.compile does.
    """

    def __init__(self, *, tf32: bool) -> None:
        self._tf32 = tf32
        self._before: list[tuple[str, str]] = []  # settings of matrix products and of cuDNN, one pair per entry

    def __enter__(self) -> None:
        matmul = torch.backends.cuda.matmul
        cudnn = torch.backends.cudnn
        self._before.append((matmul.fp32_precision, cudnn.rnn.fp32_precision))  # type: ignore[attr-defined]
        matmul.allow_tf32 = self._tf32
        cudnn.allow_tf32 = self._tf32

    def __exit__(self, *_: object) -> None:
        matmul = torch.backends.cuda.matmul
        of_products, of_cudnn = self._before.pop()
        matmul.allow_tf32 = of_products == "tf32"
        torch.backends.cudnn.allow_tf32 = of_cudnn == "tf32"
        matmul.fp32_precision = of_products  # "none" and "ieee" are one setting by the older name


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with this many threads on the CPU inside this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
