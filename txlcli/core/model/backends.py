"""The choice of a backend: the definition of attention in `core.model.attention`, or a faster implementation."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.settings import AttentionBackend
from txlcli.core.backend import Backend
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.kernels.attention_torch import flex, sdpa
from txlcli.core.kernels.linear import Linear, Packed, should_pack
from txlcli.core.kernels.score_buffer import Workspace
from txlcli.core.model.attention import REFERENCE, Attention


def make_backend(name: AttentionBackend, workspace: Workspace, *, recompute: bool) -> Backend:
    """Return the backend of a name.

    Args:
        name: With "reference", `core.model.attention` computes the whole attention sublayer alone; feed-forward and
            softmax still use `core.kernels`.
        workspace: score buffers that all layers share; "auto" only.
        recompute: keep no probabilities for the backward pass; "auto" only.
    """
    if name == "reference":
        return REFERENCE
    if name == "triton":  # PyTorch for CPUs comes without Triton
        from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415
        from txlcli.core.kernels.normalizer_triton import TritonRows  # noqa: PLC0415

        return Backend(attend=attend, linear=_call_module, rows=TritonRows())
    if name == "auto":
        return Backend(attend=TiledAttention(workspace, recompute=recompute), linear=_call_module)
    return Backend(attend=flex if name == "flex" else sdpa, linear=_call_module)


def _call_module(module: nn.Linear, rows: Tensor) -> Tensor:
    """Multiply rows (..., in) by calling the module."""
    product: Tensor = module(rows)
    return product


def merge_projections(attention: Attention, dtype: torch.dtype) -> None:
    """Project queries, keys and values in one product, for reading in a dtype: one kernel instead of three."""
    matrices = [attention.w_q, attention.w_k_content, attention.w_v]
    with torch.no_grad():
        merged = torch.cat([matrix.weight for matrix in matrices]).to(dtype)
    for matrix, weight in zip(matrices, merged.chunk(3), strict=True):
        matrix.weight = nn.Parameter(weight, requires_grad=False)  # a view

    attention.project_all = lambda segment: F.linear(segment, merged).chunk(3, dim=-1)


def pack(attention: Attention, dtype: torch.dtype) -> None:
    """Lay out the matrices of attention for reading in a dtype, as long as no weight changes."""
    if attention.backend is REFERENCE:
        return  # the definition reads the parameters themselves
    matrices = [attention.w_q, attention.w_k_content, attention.w_v]
    if should_pack(attention.w_q.weight, dtype):
        packed = Packed.of(torch.cat([matrix.weight for matrix in matrices]).to(dtype))
        attention.project_all = lambda segment: packed.multiply(segment).chunk(3, dim=-1)
    elif attention.w_q.weight.device.type != "cpu":
        merge_projections(attention, dtype)
    for matrix in matrices:  # used for segments of which only the last positions attend
        assert isinstance(matrix, Linear)
        matrix.cast(dtype)
    assert isinstance(attention.w_o, Linear)
    attention.w_o.pack(dtype)
