"""Where tensors live, in which number format they are multiplied."""

import contextlib
import platform
from pathlib import Path

import torch
from torch import Tensor

from txlcli.errors import UsageError
from txlcli.system import torchrun

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def pick_device(name: str) -> torch.device:
    """The device called "auto", "cpu" or "cuda"; auto takes CUDA where there is one.

    Of several processes each has the CUDA device of its local rank.

    Raises:
        UsageError: CUDA is wanted and not there.
    """
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("--device cuda: PyTorch finds no CUDA device here; use --device cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda" and torchrun.local_rank() < torch.cuda.device_count():
        torch.cuda.set_device(torchrun.local_rank())
    return torch.device(name)


def check_precision(precision: str, device: torch.device) -> None:
    """Refuse a number format that the device cannot multiply well.

    Raises:
        UsageError: fp16 without CUDA, or bf16 on a CUDA device without it.
    """
    if precision == "fp16" and device.type != "cuda":
        raise UsageError("precision fp16 needs a CUDA device; use bf16 or fp32 on the CPU")
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported(including_emulation=False):
        raise UsageError("this CUDA device has no bf16; use precision fp16 or fp32")


def check_free_memory(size: int, device: torch.device) -> None:
    """Refuse to take more bytes than a CPU has free: Linux would promise them, and later end the process.

    Raises:
        MemoryError: there are fewer; CUDA raises an error of its own.
    """
    free = _free_bytes() if device.type == "cpu" else None
    if free is not None and size > free:
        raise MemoryError(f"tried to allocate {size / 2**30:.1f} GiB, of {free / 2**30:.1f} GiB that are free")


def _free_bytes() -> int | None:
    """Memory that nobody needs, in bytes; None where the system does not say so as Linux does."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def row_multiple(device: torch.device) -> int:
    """What the length of a matrix's rows should be a multiple of; 1 on a CPU, where any length is as good.

    On CUDA the fast kernels take 16-bit numbers only if each row begins at a multiple of 16 bytes.
    """
    return 1 if device.type == "cpu" else 8


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. Nobody waits for the copy to CUDA: it goes on by itself, from pinned memory."""
    from_host = device.type == "cuda" and tensor.device.type == "cpu"
    return (tensor.pin_memory() if from_host else tensor).to(device, non_blocking=True)


def autocast(device: torch.device, precision: str) -> contextlib.AbstractContextManager[object]:
    """Matrix products in `precision` inside this block."""
    if precision == "fp32":
        return contextlib.nullcontext()
    return torch.autocast(device.type, dtype=DTYPES[precision])


def cast_for_products(tensor: Tensor) -> Tensor:
    """In the number format that autocast gives matrix products: cast once what goes into several of them."""
    kind = tensor.device.type
    cast = torch.is_autocast_enabled(kind) and tensor.dtype == torch.float32
    return tensor.to(torch.get_autocast_dtype(kind)) if cast else tensor


def describe(device: torch.device) -> str:
    """A few words for people: `cpu (2 threads)`, or the card's name."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({torch.get_num_threads()} threads)"


def describe_machine(device: torch.device) -> str:
    """What numbers and times depend on, for people: device, kind of processor, PyTorch."""
    return f"{describe(device)}, {platform.machine()}, PyTorch {torch.__version__}"
