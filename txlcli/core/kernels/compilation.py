"""Checks that compilers of kernels work here: torch.compile for layers, Triton for attention and softmax."""

import functools
import logging
import os
import warnings
from collections import Counter
from collections.abc import Callable
from textwrap import shorten
from typing import Any, ParamSpec, TypeVar

import torch

from txlcli.core.kernels.device import AMPERE
from txlcli.core.kernels.private import compiler_failures, constant_for_compiler, prepare_compiler
from txlcli.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")

MAX_FAILURES = 2
"""Failures in a row after which a function is no longer compiled: a single one may come from a full disk."""
_failures = Counter[Callable[..., Any]]()
"""Failures of the compiler in a row, for each function."""

MAX_ITEMSIZE = 4
"""Bytes of the widest dtype of Triton's kernels, which add up in float32."""
MAX_WIDTH = 128
"""Largest head width of Triton's attention; wider tiles do not fit into registers."""
COMPILER_OPTIONS = {"shape_padding": False, "comprehensive_padding": False, "combo_kernels": True}
"""The compiler pads no shapes or strides: the model pads rows, and a product copies an operand with gaps between its
rows. Small kernels that do not depend on each other are joined."""
_failed_kernels: dict[str, str] = {}
"""Why Triton's kernels are not used any more in this process, by type of device."""
logger = logging.getLogger(__name__)


def give_up_triton(device: torch.device, reason: str) -> None:
    """Use no more kernels of Triton on this device in this process, since one of them failed."""
    _failed_kernels[device.type] = reason
    triton_problem.cache_clear()


@functools.cache
def triton_problem(device: torch.device) -> str | None:
    """Return why Triton's kernels do not run on a device; None if they do."""
    if device.type in _failed_kernels:
        return _failed_kernels[device.type]
    if os.environ.get("TRITON_INTERPRET") == "1":  # slowly, on a CPU
        return None
    if device.type != "cuda":
        return "they need a CUDA device"
    return gpu_problem(torch.cuda.get_device_capability(device), _triton_target)


def _triton_target() -> object:
    """Return what Triton compiles for; the first call compiles a module of its own."""
    from triton.runtime.driver import driver  # noqa: PLC0415 - PyTorch for CPUs has no Triton

    return driver.active.get_current_target()


def gpu_problem(capability: tuple[int, int], find_target: Callable[[], object]) -> str | None:
    """Return why Triton cannot launch a kernel on a GPU of a compute capability; None if it can."""
    if capability < AMPERE:
        found = "{}.{}".format(*capability)
        needed = "{}.{}".format(*AMPERE)
        return f"the GPU has compute capability {found}, and they need {needed}"
    try:
        find_target()
    except ModuleNotFoundError:
        return "Triton is not installed; pip install triton"
    except Exception as error:
        return f"Triton cannot compile here ({first_line(error)}); it needs gcc, and Python's headers (python3-dev)"
    return None


def first_line(error: Exception) -> str:
    """Return the beginning of an error message of a compiler or of a kernel."""
    first_paragraph = str(error).partition("\n\n")[0]
    return shorten(first_paragraph or type(error).__name__, 160)


@constant_for_compiler
def runs_triton(device: torch.device, dtype: torch.dtype, width: int = 0) -> bool:
    """Return True if Triton's kernels run on a device, in a dtype, for heads of a width."""
    return dtype.itemsize <= MAX_ITEMSIZE and width <= MAX_WIDTH and triton_problem(device) is None


def portable_reason(device: torch.device, width: int, problem: str | None) -> str | None:
    """Tell the user why attention on a GPU does without its fast kernels; None if it uses them, and on a CPU.

    Args:
        device: of the model.
        width: of a head.
        problem: why Triton's kernels do not run on the device, see `triton_problem`.
    """
    if device.type != "cuda":
        return None
    if problem is None and width > MAX_WIDTH:
        problem = f"they have heads of at most {MAX_WIDTH} units, not {width}"
    if problem is None:
        return None
    return f"attention without Triton's kernels, which takes longer and more memory: {problem}"


def compiler_problem(device: torch.device) -> str | None:
    """Prepare the compiler; compile a small function, and return why PyTorch cannot, or None."""
    prepare_compiler()
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        compiler = "Triton" if device.type == "cuda" else "g++"
        return f"PyTorch finds no working compiler for {device.type} ({first_line(error)}); install {compiler}"
    return None


def check_compiler(device: torch.device, instead: str) -> None:
    """Check that PyTorch can compile for a device; `instead` is the next step without.

    Functions that could not be compiled for an earlier model are compiled again.
    """
    problem = compiler_problem(device)
    if problem is not None:
        raise UsageError(f"compile: {problem}, or {instead}")
    _failures.clear()


def path_in_words(attention: str | None, *, compiled: bool, captured: bool) -> str:
    """Describe the path that was taken, as "triton, compiled, captured"; see `LanguageModel.attention_kernels`."""
    is_compiled = compiled and all(count < MAX_FAILURES for count in _failures.values())
    words = [] if attention is None else [attention]
    words.append("compiled" if is_compiled else "not compiled")
    words.append("captured" if captured else "not captured")
    return ", ".join(words)


def compiled(function: Callable[P, R], compiles: bool = True) -> Callable[P, R]:
    """Compile a function as one graph, or return it as it is."""
    fused: Callable[P, R] = _compiled(function) if compiles else function
    return fused


@functools.cache
def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function, at the first call with tensors of other shapes once more.

    If the compiler fails, the log has the traceback, and the function is called as it is, every time after
    `MAX_FAILURES`, when a warning says why.
    """
    fused: Callable[..., Any] = torch.compile(function, fullgraph=True, dynamic=False, options=dict(COMPILER_OPTIONS))
    failures = compiler_failures()

    def call(*args: Any, **kwargs: Any) -> Any:
        if _failures[function] >= MAX_FAILURES:
            return function(*args, **kwargs)
        try:
            result = fused(*args, **kwargs)
        except failures as error:
            logger.debug("a function is not compiled", exc_info=error)
            _failures[function] += 1
            if _failures[function] == MAX_FAILURES:
                warnings.warn(f"layers are not compiled, and take longer: {first_line(error)}", stacklevel=2)
            return function(*args, **kwargs)
        _failures[function] = 0
        return result

    return call
