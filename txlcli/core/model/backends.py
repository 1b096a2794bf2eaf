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


def _plain_dropout(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
    """Return `core.kernels.dropout.drop` in operations that a compiler fuses; on a CPU the mask is another one."""
    if rate == 0 or not variational:
        return F.dropout(hidden, rate) if rate else hidden
    exact = torch.promote_types(hidden.dtype, torch.float32)
    scale = F.dropout(torch.ones_like(hidden[..., :1, :], dtype=exact), rate)
    return (hidden * scale).to(hidden.dtype)


def _plain_activation(hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
    return _plain_dropout(F.relu(hidden), rate, variational=variational)


def _plain_linear(rows: Tensor, weight: Tensor, bias: Tensor | None, *, wide: bool = False) -> Tensor:
    """Return F.linear, which is never wider."""
    return F.linear(rows, weight, bias)


COMPILED = Backend(
    attend=FastAttention(attention.attend),
    linear=_plain_linear,
    dropout=_plain_dropout,
    activation=_plain_activation,
    joins_context=True,
)
"""Plain PyTorch, which torch.compile fuses, around the kernels of attention; where they do not run, its definition."""
