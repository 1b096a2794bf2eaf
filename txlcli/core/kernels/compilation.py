"""What torch.compile is used for, and whether it can be: layers in training, FlexAttention.

Layers are compiled one by one: all have one shape, so one compilation serves all.
"""

import contextlib
from collections.abc import Iterator

import torch

from txlcli.core.kernels.private import compile_across_ddp_buckets
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.errors import UsageError


def compile_layers(model: TransformerXL) -> None:
    """Let the layers run what torch.compile makes of them: norms, residuals, dropout and activations in few kernels.

    txl's own attention stays as it is (`attention_lanes`), and so do embedding and softmax; FlexAttention is compiled
    with the layer.

    Raises:
        UsageError: PyTorch cannot compile for the model's device here.
    """
    check_compiler(model.device, "compile", "leave out --compile, or --set train.compile=false for a run")
    compile_across_ddp_buckets()
    for layer in model.layers:
        layer.compile(dynamic=False)


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


@contextlib.contextmanager
def as_written(model: TransformerXL) -> Iterator[None]:
    """Inside this block nothing is compiled, as for shapes that come once; FlexAttention gives way to txl's own."""
    kind = model.attention_kind
    if kind == "flex":
        model.attend_by("auto")
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        model.attend_by(kind)
