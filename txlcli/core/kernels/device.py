"""Devices and precisions: which device tensors are on, and which dtype matrix products use."""

import contextlib
import platform
import resource
from collections.abc import Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor

from txlcli.core.kernels.private import constant_for_compiler
from txlcli.errors import UnknownNameError, UsageError
from txlcli.system import launcher

DTYPES = {"fp32": torch.float32, "tf32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""dtype of the operands of matrix products in each precision."""
DEVICES = ("auto", "cpu", "cuda", "mps")
AMPERE = (8, 0)
"""Compute capability of the first GPUs that multiply bf16 and TF32."""
CUDA_MULTIPLE = 8
"""Numbers of which rows of a matrix should be a multiple on CUDA: fast 16-bit kernels need rows of whole 16 bytes."""
WEIGHTS_PER_THREAD = 1 << 24
"""Weights times tokens read at a time that keep one thread busy: with fewer, threads wait for each other most of it."""
MEMINFO, STATM = Path("/proc/meminfo"), Path("/proc/self/statm")

Value = TypeVar("Value")


def pick_device(name: str) -> torch.device:
    """Return the device called "auto", "cpu", "cuda" or "mps" (Apple's GPUs); auto is CUDA if it is available.

    With several processes, each gets the CUDA device of its local rank.
    """
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("`device` cuda: PyTorch finds no CUDA device here; use `device` cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UsageError("`device` mps: PyTorch finds no GPU of Apple's here; use `device` cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and launcher.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(launcher.local_rank())
    return torch.device(name)


def check_precision(precision: str, device: torch.device) -> None:
    """Check that the device has fast matrix products in this precision."""
    if precision not in DTYPES:
        raise UnknownNameError("precision", precision, DTYPES)
    if precision == "tf32" and device.type != "cuda":
        raise UsageError("precision tf32 needs a CUDA device; use fp32 or bf16 on the CPU")
    if precision == "tf32" and (capability := torch.cuda.get_device_capability(device)) < AMPERE:
        needed = "precision tf32 needs a GPU of compute capability {}.{} or higher".format(*AMPERE)
        raise UsageError(f"{needed}, not {{}}.{{}}; use fp32 or fp16".format(*capability))
    if device.type == "mps" and precision != "fp32":
        raise UsageError(f"precision {precision} needs a CPU or a CUDA device; use fp32 with `device` mps")
    if precision == "fp16" and device.type != "cuda":
        raise UsageError("precision fp16 needs a CUDA device; use bf16 or fp32 on the CPU")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError("this CUDA device has no bf16; use precision fp16 or fp32")


def product_dtype(precision: str, weights: torch.dtype) -> torch.dtype:
    """Return the dtype of the operands of products: the weights' own, unless the precision has 16 bits."""
    return weights if DTYPES[precision] == torch.float32 else DTYPES[precision]


_memory_is_unlimited = ContextVar("_memory_is_unlimited", default=False)


def unlimited_memory() -> AbstractContextManager[None]:
    """Let tensors without data have any size inside this block."""
    return setting(_memory_is_unlimited, True)


def check_free_memory(size: int, device: torch.device, *, meminfo: Path = MEMINFO) -> None:
    """Check that a CPU has `size` bytes free: Linux would grant more, and kill the process when it uses them."""
    free = _free_bytes(meminfo) if device.type == "cpu" and not _memory_is_unlimited.get() else None
    if free is not None and size > free:
        raise MemoryError(f"tried to allocate {size / 2**30:.1f} GiB, of {free / 2**30:.1f} GiB that are free")


def _free_bytes(meminfo: Path) -> int | None:
    """Return the bytes available to new allocations, or None if the system does not report them as Linux does."""
    try:
        lines = meminfo.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def available_bytes(device: torch.device, *, meminfo: Path = MEMINFO) -> int | None:
    """Return the memory that is free or that this process has already, in bytes; None if the system does not say."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0]) + torch.cuda.memory_reserved(device)
    free = _free_bytes(meminfo)
    if free is None:
        return None
    return free + int(STATM.read_text(encoding="ascii").split()[1]) * resource.getpagesize()


def used_by_others(device: torch.device) -> int:
    """Return the bytes of a GPU that other processes, or libraries, use; 0 on a CPU."""
    if device.type == "cpu":
        return 0
    return int(torch.cuda.mem_get_info(device)[1]) - (available_bytes(device) or 0)


@contextlib.contextmanager
def setting(variable: ContextVar[Value], value: Value) -> Iterator[None]:
    """Give a context variable this value inside the block."""
    before = variable.set(value)
    try:
        yield
    finally:
        variable.reset(before)


_as_gpu = ContextVar("_as_gpu", default=False)


def as_on_gpu() -> AbstractContextManager[None]:
    """Let a CPU keep for the backward pass what a GPU keeps, inside this block: to forecast the memory of a GPU.

    It then scores a whole batch at once, and keeps autocast's casts of weights.
    """
    return setting(_as_gpu, True)


def computes_as_gpu(device: torch.device) -> bool:
    """Return True on GPUs, and inside `as_on_gpu`."""
    return device.type != "cpu" or _as_gpu.get()


_row_multiple: ContextVar[int | None] = ContextVar("_row_multiple", default=None)


@constant_for_compiler
def row_multiple(device: torch.device) -> int:
    """Return the number that row lengths of a matrix should be a multiple of; 1 on a CPU, where any length is fast."""
    return _row_multiple.get() or (1 if device.type == "cpu" else CUDA_MULTIPLE)


def row_multiple_of_products(operand: Tensor) -> int:
    """Return the number that row lengths of the operands of products in training should be a multiple of.

    Only products of 16 bits and in TF32 gain from aligned rows.
    """
    return _row_multiple_of(operand.device, autocast_dtype(operand)) if torch.is_grad_enabled() else 1


@constant_for_compiler
def _row_multiple_of(device: torch.device, dtype: torch.dtype) -> int:
    """Return `row_multiple` for products in a dtype that gain from it, else 1."""
    uses_tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    gains = dtype.itemsize == 2 or uses_tf32 or _row_multiple.get() is not None
    return row_multiple(device) if gains else 1


def use_row_multiple(multiple: int) -> AbstractContextManager[None]:
    """Lay out rows in this multiple inside this block, on any device."""
    return setting(_row_multiple, multiple)


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. Copies from the host to CUDA are asynchronous, from pinned memory."""
    from_host = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if from_host else tensor).to(device, non_blocking=True)


def autocast(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Compute matrix products in `precision` inside this block, which may be entered again.

    Their gradients are not computed here: see `float32_products`.
    """
    if DTYPES[precision] == torch.float32:
        return float32_products(device, precision)
    return torch.autocast(device.type, dtype=DTYPES[precision])


def float32_products(device: torch.device, precision: str) -> AbstractContextManager[object]:
    """Multiply float32 in this precision inside this block, also in a backward pass, if the device has a choice."""
    if device.type == "cpu" or DTYPES[precision] != torch.float32:
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
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        self._before.append((matmul.fp32_precision, cudnn.rnn.fp32_precision))  # type: ignore[attr-defined]
        matmul.allow_tf32 = cudnn.allow_tf32 = self._tf32

    def __exit__(self, *_: object) -> None:
        matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
        of_products, of_cudnn = self._before.pop()
        matmul.allow_tf32, cudnn.allow_tf32 = of_products == "tf32", of_cudnn == "tf32"
        matmul.fp32_precision = of_products  # "none" and "ieee" are one setting by the older name


def float64_device(device: torch.device) -> torch.device:
    """Return the device for numbers in float64: Apple's GPUs have none."""
    return torch.device("cpu") if device.type == "mps" else device


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Let PyTorch compute with this many threads on the CPU inside this block."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def useful_threads(model: torch.nn.Module, tokens: int) -> int:
    """Return how many of PyTorch's threads pay while a model reads so many tokens at a time."""
    work = tokens * sum(parameter.numel() for parameter in model.parameters())
    return min(torch.get_num_threads(), max(1, work // WEIGHTS_PER_THREAD))


def generator_state(device: torch.device) -> Tensor:
    """Return the state of PyTorch's random generator of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Set the state of PyTorch's random generator of a device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def cast_for_products(tensor: Tensor) -> Tensor:
    """Cast to autocast's dtype for matrix products: once, for a tensor that several products read."""
    return cast(tensor, autocast_dtype(tensor))


def cast(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the tensor itself if it has this dtype.

    PyTorch 2.11 compiles an `autograd.Function` whose result was cast to its own dtype, and loses the gradient.
    """
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def autocast_dtype(operand: Tensor) -> torch.dtype:
    """Return the dtype in which a product reads an operand, which autocast may cast."""
    device_type = operand.device.type
    cast = torch.is_autocast_enabled(device_type) and operand.dtype == torch.float32
    return torch.get_autocast_dtype(device_type) if cast else operand.dtype


def describe(device: torch.device) -> str:
    """Describe a device for the user: `cpu (2 threads)`, or the name of the card."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu ({threads} thread{'s' if threads > 1 else ''})"


def describe_machine(device: torch.device) -> str:
    """Describe what numbers and times depend on: device, processor architecture, PyTorch version."""
    return f"{describe(device)}, {platform.machine()}, PyTorch {torch.__version__}"
