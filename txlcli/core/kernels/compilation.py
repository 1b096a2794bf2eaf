"""Checks that torch.compile works here, before it is used for layers in training and for FlexAttention."""

import torch

from txlcli.errors import UsageError


def check_attention(backend: str, device: torch.device) -> None:
    """Refuse an attention backend that does not work on the device.

    FlexAttention needs torch.compile. On a CPU it has no gradient, and its kernels do not support lengths that vary, as
    those of a memory do.

    Raises:
        UsageError: FlexAttention without CUDA, or without a compiler.
    """
    if backend != "flex":
        return
    if device.type != "cuda":
        raise UsageError("attention flex needs a CUDA device; take auto, reference or sdpa on a CPU")
    check_compiler(device, "attention flex", "take --attention auto")


def check_compiler(device: torch.device, feature: str, instead: str) -> None:
    """Compile a small function to find out whether PyTorch can.

    Args:
        device: to compile for.
        feature: that needs the compiler.
        instead: next step without it.

    Raises:
        UsageError: PyTorch finds no working compiler.
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
