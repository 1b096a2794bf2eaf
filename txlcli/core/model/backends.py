"""The choice among implementations of attention: the definition in `core.model.attention`, or a faster one."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.config.settings import AttentionBackend
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.kernels.attention_torch import flex, sdpa
from txlcli.core.kernels.linear import Linear, Packed, should_pack
from txlcli.core.kernels.normalizer import RowOperations
from txlcli.core.kernels.score_buffer import Workspace
from txlcli.core.model import attention as definition
from txlcli.core.model.attention import Attend, Attention, Product


def choose(name: AttentionBackend, workspace: Workspace, *, recompute: bool) -> tuple[Attend, Product]:
    """Return the functions that compute attention and its projections with a backend.

    Args:
        name: of the backend. With "reference", `core.model.attention` computes the whole attention sublayer alone, and
            its four matrices are multiplied by F.linear; feed-forward and softmax still use `core.kernels`.
        workspace: score buffers that all layers share; "auto" only.
        recompute: keep no probabilities for the backward pass; "auto" only.
    """
    if name == "reference":
        return definition.attend, definition.plain_product
    if name == "triton":
        return _triton(), _call_module
    attend: dict[str, Attend] = {"auto": TiledAttention(workspace, recompute=recompute), "sdpa": sdpa, "flex": flex}
    return attend[name], _call_module


def row_operations(name: AttentionBackend) -> RowOperations | None:
    """Return what computes the rows of the softmax with a backend; None: PyTorch's operations."""
    if name != "triton":
        return None
    from txlcli.core.kernels.normalizer_triton import TritonRows  # noqa: PLC0415 - see `_triton`

    return TritonRows()


def _triton() -> Attend:
    from txlcli.core.kernels.attention_triton import attend  # noqa: PLC0415 - PyTorch for CPUs comes without Triton

    return attend


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

    def project_all(segment: Tensor) -> tuple[Tensor, ...]:
        return F.linear(segment, merged).chunk(3, dim=-1)

    attention.project_all = project_all


def pack(attention: Attention, dtype: torch.dtype) -> None:
    """Lay out the matrices of attention for reading in a dtype, as long as no weight changes."""
    if attention.product is definition.plain_product:
        return  # the definition reads the parameters themselves
    matrices = [attention.w_q, attention.w_k_content, attention.w_v]
    if should_pack(attention.w_q.weight, dtype):
        packed = Packed.of(torch.cat([matrix.weight for matrix in matrices]).to(dtype))

        def project_all(segment: Tensor) -> tuple[Tensor, ...]:
            return packed.multiply(segment).chunk(3, dim=-1)

        attention.project_all = project_all
    elif attention.w_q.weight.device.type != "cpu":
        merge_projections(attention, dtype)
    for matrix in matrices:  # used for segments of which only the last positions attend
        assert isinstance(matrix, Linear)
        matrix.cast(dtype)
    assert isinstance(attention.w_o, Linear)
    attention.w_o.pack(dtype)
