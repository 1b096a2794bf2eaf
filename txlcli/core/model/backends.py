"""The choice of a backend: the definition of attention in `core.model.attention`, or faster implementations."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from txlcli.config.settings import AttentionBackend
from txlcli.core.backend import Attend, Backend
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.kernels.attention_torch import flex, sdpa
from txlcli.core.kernels.dropout import drop, relu_dropout
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.score_buffer import Workspace
from txlcli.core.model import attention

FAST = Backend(attend=TiledAttention(), linear=linear, dropout=drop, activation=relu_dropout)
"""The fast path, before a model shares its score buffers."""


def make_backend(name: AttentionBackend, workspace: Workspace, *, recompute: bool) -> Backend:
    """Return the backend of a name.

    Args:
        name: With "reference", PyTorch and `core.model.attention` compute the layers, except dropout.
        workspace: score buffers that all layers share; "auto" only.
        recompute: keep no probabilities for the backward pass; "auto" only.
    """
    if name == "triton":  # PyTorch for CPUs comes without Triton
        from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415
        from txlcli.core.kernels.normalizer_triton import TritonRows  # noqa: PLC0415

        return dataclasses.replace(FAST, attend=attend, rows=TritonRows())
    if name == "reference":
        return dataclasses.replace(FAST, attend=attention.attend, linear=_plain_linear)
    others: dict[AttentionBackend, Attend] = {"flex": flex, "sdpa": sdpa}
    return dataclasses.replace(FAST, attend=others.get(name) or TiledAttention(workspace, recompute=recompute))


def for_compiler(backend: Backend, device: torch.device) -> Backend:
    """Return a backend for layers that torch.compile traces: it chooses products itself, and leaves attention as it is.

    The masks of dropout on a CPU are not traced either.
    """
    drop_apart = torch.compiler.disable(drop) if device.type == "cpu" else drop

    def activation(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
        dropped: Tensor = drop_apart(F.relu(hidden), rate, variational=variational)
        return dropped

    attend = torch.compiler.disable(backend.attend.__call__)
    return dataclasses.replace(backend, attend=attend, linear=_plain_linear, dropout=drop_apart, activation=activation)


def _plain_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, *, wide: bool = False) -> Tensor:
    """Return F.linear, which is never wider."""
    return F.linear(rows, weight, bias)
