"""Checks that compilers of kernels work here: torch.compile for layers, Triton for attention and softmax."""

import functools
import importlib.metadata
import importlib.util
import os
import shutil
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import torch

from txlcli.core.kernels.device import AMPERE
from txlcli.core.kernels.private import constant_for_compiler, prepare_compiler
from txlcli.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

MIN_TRITON = (3, 6)
"""Oldest release of Triton that compiles the kernels."""
MAX_ITEMSIZE = 4
"""Bytes of the widest dtype of Triton's kernels, which add up in float32."""
MAX_WIDTH = 128
"""Largest head width of Triton's attention; wider tiles do not fit into registers."""


@functools.cache
def triton_problem(device: torch.device) -> str | None:
    """Return why Triton's kernels do not run on a device; None if they do."""
    if os.environ.get("TRITON_INTERPRET") == "1":  # slowly, on a CPU
        return None
    if device.type != "cuda":
        return "they need a CUDA device"
    capability = torch.cuda.get_device_capability(device)
    if capability < AMPERE:
        return "the GPU has compute capability {}.{}, and they need {}.{}".format(*capability, *AMPERE)
    return _missing_package()


def _missing_package() -> str | None:
    """Return what Triton needs and this machine lacks."""
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed; pip install triton"
    version = importlib.metadata.version("triton")
    if tuple(map(int, version.split(".")[:2])) < MIN_TRITON:
        return "Triton {} is installed, and they need {}.{}; pip install -U triton".format(version, *MIN_TRITON)
    if not any(map(shutil.which, (os.environ.get("CC", "cc"), "gcc", "clang"))):
        return "Triton finds no C compiler; install gcc"
    return None


@constant_for_compiler
def runs_triton(device: torch.device, dtype: torch.dtype, width: int = 0) -> bool:
    """Return True if Triton's kernels run on a device, in a dtype, for heads of a width."""
    return dtype.itemsize <= MAX_ITEMSIZE and width <= MAX_WIDTH and triton_problem(device) is None


def portable_reason(device: torch.device, width: int) -> str | None:
    """Tell the user why attention on a GPU does without its fast kernels; None if it uses them, and on a CPU."""
    wide = f"they have heads of at most {MAX_WIDTH} units, not {width}" if width > MAX_WIDTH else None
    problem = (triton_problem(device) or wide) if device.type == "cuda" else None
    if problem is None:
        return None
    return f"attention without Triton's kernels, which takes longer and more memory: {problem}"


def check_compiler(device: torch.device, instead: str) -> None:
    """Prepare the compiler, and compile a small function to find out whether PyTorch can.

    Args:
        device: to compile for.
        instead: next step without it.
    """
    prepare_compiler()
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        compiler = "Triton" if device.type == "cuda" else "g++"
        missing = f"compile: PyTorch finds no working compiler for {device.type} ({reason})"
        raise UsageError(f"{missing}; install {compiler}, or {instead}") from error


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function as one graph, at the first call with tensors of other shapes once more.

    Rows are padded by the model, not by the compiler, and small kernels that do not depend on each other are joined.
    """
    options: dict[str, str | int | bool | Callable[..., object]] = {"shape_padding": False, "combo_kernels": True}
    result: Callable[P, R] = torch.compile(function, fullgraph=True, dynamic=False, options=options)
    return result
