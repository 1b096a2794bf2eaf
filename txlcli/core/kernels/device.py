"""Devices: which one tensors are on, how much memory it has, and which layouts and dtypes its products read."""

import functools
import os
import platform
import resource
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import torch
from torch import Tensor

from txlcli.core.kernels.modes import DTYPES, chosen_row_multiple, memory_is_unlimited
from txlcli.core.kernels.private import constant_for_compiler, processor_has_bf16
from txlcli.errors import UnknownNameError, UsageError
from txlcli.system import launcher
from txlcli.system.memory import free_bytes

DEVICES = ("auto", "cpu", "cuda", "mps")
AMPERE = (8, 0)
"""Compute capability of the first GPUs that multiply bf16 and TF32."""
CUDA_MULTIPLE = 8
"""Elements of which rows of a matrix should be a multiple on CUDA: fast 16-bit kernels need rows of whole 16 bytes."""
WEIGHTS_PER_THREAD = 1 << 24
"""Weights times tokens read at a time that keep one thread busy: with fewer, threads wait for each other most of it."""
VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
"""Variable with the GPUs that a process sees."""
FreeBytes = Callable[[], int | None]
STATM = Path("/proc/self/statm")


def pick_device(name: str) -> torch.device:
    """Return the device called "auto", "cpu", "cuda" or "mps" (Apple's GPUs); auto is CUDA if it is available.

    Each of several processes of a machine sees its own CUDA device only, as number 0: compiled code, which the
    processes share, is made for a number. This must be the first use of CUDA.
    """
    if name not in DEVICES:
        raise UnknownNameError("device", name, DEVICES)
    if name in ("auto", "cuda"):
        _see_own_gpu()
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("`device` cuda: PyTorch finds no CUDA device here; use `device` cpu")
    if name == "mps" and not torch.backends.mps.is_available():
        raise UsageError("`device` mps: PyTorch finds no GPU of Apple's here; use `device` cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    return torch.device(name)


@functools.cache  # afterwards one is visible
def _see_own_gpu() -> None:
    """Let this process see one of the GPUs of the machine, if it is one of several processes."""
    place = launcher.place()
    gpus = torch.cuda.device_count()
    if not gpus or place.world_size == 1:
        return
    os.environ[VISIBLE_GPUS] = own_gpu(place, gpus, os.environ.get(VISIBLE_GPUS))
    if torch.accelerator.device_count() > 1:  # CUDA was in use before
        torch.cuda.set_device(place.local_rank)


def own_gpu(place: launcher.Place, gpus: int, visible: str | None) -> str:
    """Return the GPU of a process as CUDA's variable names it, given their number and the variable of all processes."""
    if place.local_world_size > gpus:
        raise UsageError(
            f"{place.local_world_size} processes need {place.local_world_size} CUDA devices, and this machine has "
            f"{gpus}; use fewer of them"
        )
    names = visible.split(",") if visible else [str(number) for number in range(gpus)]
    return names[place.local_rank]


def check_precision(precision: str, device: torch.device) -> None:
    """Check that the device has fast matrix products in this precision."""
    if precision not in DTYPES:
        raise UnknownNameError("precision", precision, DTYPES)
    if precision in ("tf32", "fp16") and device.type != "cuda":
        raise UsageError(f"precision {precision} needs a CUDA device; use fp32 or bf16 on the CPU")
    if precision == "bf16" and device.type == "mps":
        raise UsageError("precision bf16 needs a CPU or a CUDA device; use fp32 with `device` mps")
    if precision == "tf32":
        check_tf32(torch.cuda.get_device_capability(device))
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError("this CUDA device has no bf16; use precision fp16 or fp32")


def check_tf32(capability: tuple[int, int]) -> None:
    """Check that a GPU of this compute capability multiplies in TF32."""
    if capability < AMPERE:
        needed = "{}.{}".format(*AMPERE)
        found = "{}.{}".format(*capability)
        raise UsageError(
            f"precision tf32 needs a GPU of compute capability {needed} or higher, not {found}; use fp32 or fp16"
        )


def describe_precision(precision: str, device: torch.device, has_bf16: Callable[[], bool] = processor_has_bf16) -> str:
    """Return the precision, and that a processor emulates bf16: it then takes longer than fp32, and as much memory."""
    if precision == "bf16" and device.type == "cpu" and not has_bf16():
        return "bf16 (this processor has no bf16 instructions, so that fp32 is faster)"
    return precision


def product_dtype(precision: str, weights: torch.dtype) -> torch.dtype:
    """Return the dtype of the operands of products: the weights' own, unless the precision has 16 bits."""
    dtype = DTYPES[precision]
    return weights if dtype == torch.float32 else dtype


def check_free_memory(size: int, device: torch.device, *, free: FreeBytes = free_bytes) -> None:
    """Check that a CPU has `size` bytes free: Linux would grant more, and kill the process when it uses them."""
    if device.type != "cpu" or memory_is_unlimited():
        return
    known = free()
    if known is not None and size > known:
        raise MemoryError(f"tried to allocate {size / 2**30:.1f} GiB, of {known / 2**30:.1f} GiB that are free")


def available_bytes(device: torch.device, *, free: FreeBytes = free_bytes) -> int | None:
    """Return the memory that is free or that this process has already, in bytes; None if the system does not say."""
    if device.type == "cuda":
        free_on_gpu, _ = torch.cuda.mem_get_info(device)
        return int(free_on_gpu) + torch.cuda.memory_reserved(device)
    known = free()
    if known is None:
        return None
    resident_pages = int(STATM.read_text(encoding="ascii").split()[1])
    return known + resident_pages * resource.getpagesize()


def used_by_others(device: torch.device) -> int:
    """Return the bytes of a CUDA device that other processes, or libraries, use; 0 on other devices."""
    if device.type != "cuda":
        return 0
    _, total = torch.cuda.mem_get_info(device)
    return int(total) - (available_bytes(device) or 0)


@constant_for_compiler
def row_multiple(device: torch.device) -> int:
    """Return the number that row lengths of a matrix should be a multiple of; 1 on a CPU, where any length is fast."""
    chosen = chosen_row_multiple()
    if chosen is not None:
        return chosen
    if device.type == "cpu":
        return 1
    return CUDA_MULTIPLE


def row_multiple_of_products(operand: Tensor) -> int:
    """Return the number that row lengths of the operands of products in training should be a multiple of.

    Only products of 16 bits and in TF32 gain from aligned rows.
    """
    if not torch.is_grad_enabled():
        return 1
    return _row_multiple_of(operand.device, autocast_dtype(operand))


@constant_for_compiler
def _row_multiple_of(device: torch.device, dtype: torch.dtype) -> int:
    """Return `row_multiple` for products in a dtype that gain from it, else 1."""
    uses_tf32 = dtype == torch.float32 and torch.backends.cuda.matmul.fp32_precision == "tf32"
    gains = dtype.itemsize == 2 or uses_tf32 or chosen_row_multiple() is not None
    return row_multiple(device) if gains else 1


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """Copy a tensor to a device. Copies from the host to CUDA are asynchronous, from pinned memory.

    Other copies are not: Apple's GPUs would read memory of the host that is free again (pytorch/pytorch#189690).
    """
    if device.type == "cuda" and tensor.device.type == "cpu":
        return tensor.pin_memory().to(device, non_blocking=True)
    return tensor.to(device)


def float64_device(device: torch.device) -> torch.device:
    """Return the device for numbers in float64: Apple's GPUs have none."""
    return torch.device("cpu") if device.type == "mps" else device


def useful_threads(model: torch.nn.Module, tokens: int) -> int:
    """Return how many of PyTorch's threads are faster than fewer while a model reads so many tokens at a time."""
    work = tokens * sum(parameter.numel() for parameter in model.parameters())
    return min(torch.get_num_threads(), max(1, work // WEIGHTS_PER_THREAD))


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has run all kernels that were launched."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def generator_state(device: torch.device) -> Tensor:
    """Return the state of PyTorch's random generator of a device."""
    if device.type == "cuda":
        return torch.cuda.get_rng_state(device)
    if device.type == "mps":
        return torch.mps.get_rng_state()
    return torch.get_rng_state()


def set_generator_state(state: Tensor, device: torch.device) -> None:
    """Set the state of PyTorch's random generator of a device."""
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    elif device.type == "mps":
        torch.mps.set_rng_state(state)
    else:
        torch.set_rng_state(state)


def forked_generators(device: torch.device) -> AbstractContextManager[None]:
    """Restore the random generators of the host and of a device after this block."""
    devices = [] if device.type == "cpu" else [device]
    return torch.random.fork_rng(devices, device_type=device.type)


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
    if torch.is_autocast_enabled(device_type) and operand.dtype == torch.float32:
        return torch.get_autocast_dtype(device_type)
    return operand.dtype


def describe(device: torch.device) -> str:
    """Describe a device for the user: `cpu (2 threads)`, the name of the card, or `mps (Apple's GPU)`."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "mps (Apple's GPU)"
    count = torch.get_num_threads()
    threads = "thread" if count == 1 else "threads"
    return f"cpu ({count} {threads})"


def describe_machine(device: torch.device) -> str:
    """Describe what numbers and times depend on: device, processor architecture, PyTorch version."""
    return f"{describe(device)}, {platform.machine()}, PyTorch {torch.__version__}"
