"""Checks that compilers of kernels work here: torch.compile for layers and FlexAttention, Triton for attention."""

import functools
import importlib.metadata
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

import torch

from txlcli.core.kernels.private import compiler_may_trace
from txlcli.core.kernels.triton_launch import MAX_WIDTH
from txlcli.errors import UsageError

P = ParamSpec("P")
R = TypeVar("R")
OLDEST_TRITON = (3, 6)
NEEDS_CUDA = "attention {} needs a CUDA device; take auto, reference or sdpa on a CPU"
OLDEST_CAPABILITY = (8, 0)
"""Compute capability of Ampere, the first GPUs with tensor cores for bf16."""


def not_compiled(function: Callable[P, R]) -> Callable[P, R]:
    """Keep torch.compile from tracing a function, as torch.compiler.disable does, without importing the compiler.

    The compiler takes as long to import as the rest of PyTorch, and reading a text with a model does not need it. Code
    that traces functions has imported it before.
    """
    disabled: list[Callable[P, R]] = []  # made once

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> R:
        if not compiler_may_trace():
            return function(*args, **options)
        if not disabled:
            disabled.append(torch.compiler.disable(function))
        return disabled[0](*args, **options)

    return call


@dataclass(frozen=True)
class Toolchain:
    """Releases and hardware that kernels of Triton depend on."""

    triton: str | None
    """Release of Triton; None if it is not installed."""
    capability: tuple[int, int] | None
    """Compute capability of the device; None if it is not a CUDA device."""
    interprets: bool = False
    """True if Triton interprets its kernels, so that they run on a CPU, slowly: TRITON_INTERPRET=1."""

    @classmethod
    def of(cls, device: torch.device) -> "Toolchain":
        """Inspect the machine."""
        try:
            triton = importlib.metadata.version("triton")
        except importlib.metadata.PackageNotFoundError:
            triton = None
        capability = torch.cuda.get_device_capability(device) if device.type == "cuda" else None
        return cls(triton, capability, os.environ.get("TRITON_INTERPRET") == "1")


def check_attention(
    backend: str, device: torch.device, *, d_head: int | None, toolchain: Toolchain | None = None
) -> None:
    """Raise a UsageError if an attention backend does not work on the device; "auto" works everywhere.

    FlexAttention needs torch.compile. On a CPU it has no gradient, and its kernels do not support the varying
    lengths of a memory.

    Args:
        backend: name of the attention backend.
        device: that the model is on.
        d_head: head width D of the model; None without attention.
        toolchain: for Triton's kernels; by default the installed one.
    """
    if backend == "triton":
        _check_triton(toolchain or Toolchain.of(device), d_head)
    elif backend == "flex":
        if device.type != "cuda":
            raise UsageError(NEEDS_CUDA.format(backend))
        check_compiler(device, "attention flex", "take --attention auto")


def _check_triton(found: Toolchain, d_head: int | None) -> None:
    if found.capability is None and not found.interprets:
        raise UsageError(NEEDS_CUDA.format("triton"))
    if found.triton is None:
        raise UsageError("attention triton needs the package triton; pip install triton, or take --attention auto")
    if tuple(map(int, found.triton.split(".")[:2])) < OLDEST_TRITON:
        oldest = ".".join(map(str, OLDEST_TRITON))
        raise UsageError(f"attention triton needs triton {oldest} or later, not {found.triton}; take --attention auto")
    if found.capability is not None and found.capability < OLDEST_CAPABILITY:
        oldest, this = (".".join(map(str, numbers)) for numbers in (OLDEST_CAPABILITY, found.capability))
        raise UsageError(
            f"attention triton needs a GPU of compute capability {oldest} or higher, not {this}; take --attention auto"
        )
    if d_head is not None and d_head > MAX_WIDTH:
        raise UsageError(
            f"attention triton has heads of at most {MAX_WIDTH} units, not {d_head}; take --attention auto"
        )


def check_compiler(device: torch.device, feature: str, instead: str) -> None:
    """Compile a small function to find out whether PyTorch can.

    Args:
        device: to compile for.
        feature: that needs the compiler.
        instead: next step without it.
    """
    try:
        torch.compile(torch.neg)(torch.ones(2, device=device))
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        compiler = "Triton" if device.type == "cuda" else "g++"
        missing = f"{feature}: PyTorch finds no working compiler for {device.type} ({reason})"
        raise UsageError(f"{missing}; install {compiler}, or {instead}") from error
