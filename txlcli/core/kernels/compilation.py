"""Checks that compilers of kernels work here: torch.compile for layers and FlexAttention, Triton for attention."""

import importlib.util
import os

import torch

from txlcli.core.kernels.device import check_ampere
from txlcli.errors import UsageError

MAX_WIDTH = 128
"""Largest head width of Triton's attention; wider tiles do not fit into registers."""


def check_attention(backend: str, device: torch.device, *, d_head: int | None) -> None:
    """Raise a UsageError if an attention backend does not work on the device; "auto" works everywhere.

    FlexAttention needs torch.compile. On a CPU it has no gradient, and its kernels do not support the varying
    lengths of a memory. `d_head` is the head width D of the model; None without attention.
    """
    if backend not in ("triton", "flex"):
        return
    interprets = backend == "triton" and os.environ.get("TRITON_INTERPRET") == "1"  # slowly, on a CPU
    if device.type != "cuda" and not interprets:
        raise UsageError(f"attention {backend} needs a CUDA device; take auto, reference or sdpa on a CPU")
    if backend == "flex":
        check_compiler(device, "attention flex", "take `attention` auto")
        return
    if importlib.util.find_spec("triton") is None:
        raise UsageError("attention triton needs the package triton; pip install triton, or take `attention` auto")
    if device.type == "cuda":
        check_ampere(device, "attention triton", "take `attention` auto")
    if d_head is not None and d_head > MAX_WIDTH:
        raise UsageError(
            f"attention triton has heads of at most {MAX_WIDTH} units, not {d_head}; take `attention` auto"
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
