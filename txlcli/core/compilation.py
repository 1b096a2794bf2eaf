"""torch.compile for a model in training, layer by layer: all layers have one shape, so one compilation serves all."""

import contextlib

import torch

from txlcli.core.model import TransformerXL
from txlcli.errors import UsageError


def compile_layers(model: TransformerXL) -> None:
    """Let the layers run what torch.compile makes of them: norms, residuals, dropout and activations in few kernels.

    The attention itself stays as it is (`attention.attend`), and so do embedding and softmax.

    Raises:
        UsageError: PyTorch cannot compile for the model's device here.
    """
    try:
        torch.compile(torch.neg)(torch.ones(2, device=model.device))
    except Exception as error:
        reason = str(error).strip().partition("\n")[0]
        raise UsageError(
            f"train.compile: PyTorch finds no working compiler for {model.device.type} ({reason}); install one "
            "(g++ for a CPU), or leave out --compile"
        ) from error
    for layer in model.layers:
        layer.compile(dynamic=False)


def as_written() -> contextlib.AbstractContextManager[object]:
    """Inside this block nothing is compiled, as for shapes that come once."""
    stance: contextlib.AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return stance
