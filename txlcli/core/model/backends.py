"""The choice of a backend: the definition of attention in `core.model.attention`, or faster implementations."""

import dataclasses

import torch
from torch import Tensor
from torch.nn import functional as F

from txlcli.config.settings import AttentionBackend
from txlcli.core.backend import Attend, Backend, ScoreTerms
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.kernels.compilation import runs_triton
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
    if name == "reference":
        return dataclasses.replace(FAST, attend=attention.attend, linear=_plain_linear)
    return dataclasses.replace(FAST, attend=FastAttention(TiledAttention(workspace, recompute=recompute)))


class FastAttention:
    """`core.backend.Attend` on the fast path of the device: Triton's kernels on CUDA from Ampere on, tiles elsewhere.

    Args:
        tiles: for devices, dtypes and head widths without kernels.
    """

    def __init__(self, tiles: Attend) -> None:
        self.tiles = tiles

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, L, D)."""
        if not runs_triton(query.device, query.dtype, query.shape[3]):
            return self.tiles(query, key, value, terms, dropout=dropout)
        from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415 - PyTorch for CPUs has no Triton

        return attend(query, key, value, terms, dropout=dropout)


def for_compiler(backend: Backend, device: torch.device) -> Backend:
    """Return a backend for layers that torch.compile traces: it chooses products itself.

    Attention in tiles, and the masks of dropout on a CPU, are not traced.
    """
    drop_apart = torch.compiler.disable(drop) if device.type == "cpu" else drop

    def activation(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
        dropped: Tensor = drop_apart(F.relu(hidden), rate, variational=variational)
        return dropped

    attend = backend.attend
    if isinstance(attend, FastAttention):
        attend = FastAttention(torch.compiler.disable(attend.tiles.__call__))
    return dataclasses.replace(backend, attend=attend, linear=_plain_linear, dropout=drop_apart, activation=activation)


def _plain_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, *, wide: bool = False) -> Tensor:
    """Return F.linear, which is never wider."""
    return F.linear(rows, weight, bias)
