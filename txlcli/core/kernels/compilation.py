"""Checks that torch.compile works here, before it is used for layers in training and for FlexAttention."""

import torch

from txlcli.errors import UsageError


def check_attention(kind: str, device: torch.device) -> None:
    """Refuse a way to compute attention that does not work on the device.

    FlexAttention is what torch.compile makes of it. On a CPU it has no gradient, and its kernels are not made for
    lengths that vary, as memory's do.

    Raises:
        UsageError: FlexAttention without CUDA, or without a compiler.
    """
    if kind != "flex":
        return
    if device.type != "cuda":
        raise UsageError("attention flex needs a CUDA device; take auto, reference or sdpa on a CPU")
    check_compiler(device, "attention flex", "take --attention auto")


def check_compiler(device: torch.device, wish: str, instead: str) -> None:
    """Compile something small.

    Args:
        device: to compile for.
        wish: what needs it.
        instead: what to do without.

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
        raise UsageError(
            f"{wish}: PyTorch finds no working compiler for {device.type} ({reason}); install {compiler}, or {instead}"
        ) from error
