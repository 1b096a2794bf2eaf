"""Attention with relative positions as a function, for models of your own: section 3.3 and Appendix B of the paper.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key of their own.
"""

import torch
from torch import Tensor

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.model import attention
from txlcli.core.model.backends import FastAttention
from txlcli.errors import UsageError

AXES = {
    "query": "BHLD",
    "key": "BHKD",
    "value": "BHKD",
    "position_key": "HmD",
    "content_bias": "HD",
    "position_bias": "HD",
    "distance_bias": "Hn",
}
"""Axes of each tensor, in the order of the parameters."""
REQUIRED = ("query", "key", "value")


def relative_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    content_bias: Tensor | None = None,
    position_bias: Tensor | None = None,
    *,
    distance_bias: Tensor | None = None,
    window: int | None = None,
    dropout: float = 0.0,
) -> Tensor:
    """Attend from the queries of a segment to the keys of memory and segment, causally, on the device's fast path.

    The score of query i for key j, at distance M + i - j, is
    ((query_i + content_bias) . key_j + (query_i + position_bias) . position_key_distance) / sqrt(D), plus the bias of
    the distance. Differentiable in all tensors. Triton's kernels compute it on CUDA devices of compute capability 8.0
    or higher, for D up to 128; elsewhere the result is the same.

    Args:
        query: (B, H, L, D).
        key: (B, H, K, D); the last L keys are the positions of the queries, those before are the memory's.
        value: (B, H, K, D).
        position_key: (H, m, D), W_kR R of each distance: row c is distance m - 1 - c, so the farthest comes first. The
            first row also stands for every larger distance. None scores no distances.
        content_bias: u, (H, D).
        position_bias: v, (H, D).
        distance_bias: added to the score of each distance, as in ALiBi or T5, (H, n); column c is distance n - 1 - c.
        window: n, the number of keys that a query sees, itself included; K by default.
        dropout: probability of dropping an attention weight, less than 1.
    Returns:
        (B, H, L, D).
    Raises:
        UsageError: if the types, shapes, dtypes or devices do not fit, or the window or the dropout is out of range.
    """
    sizes = _sizes(query, key, value, position_key, content_bias, position_bias, distance_bias)
    seg_len = sizes["L"]
    key_len = sizes["K"]
    if seg_len > key_len:
        raise UsageError(
            f"query has {seg_len} positions, key {key_len}; the last L of the K keys belong to the queries"
        )
    is_window = window is None or (isinstance(window, int) and window >= 1)
    is_share = isinstance(dropout, int | float) and 0 <= dropout < 1
    if not (is_window and is_share):
        raise UsageError(
            f"window {window!r}, dropout {dropout!r}: give a whole window of at least 1, a dropout from 0 to below 1"
        )
    reach = min(window or key_len, key_len)
    if distance_bias is not None and sizes["n"] != reach:
        raise UsageError(f"distance_bias needs {reach} columns, one for each distance, not {sizes['n']}")
    if position_key is not None and position_key.shape[1] > reach:
        position_key = position_key[:, -reach:]
    terms = ScoreTerms(reach, position_key, content_bias, position_bias, distance_bias)
    has_tiles = query.device.type in ("cpu", "cuda") and not torch.compiler.is_compiling()
    attend = FastAttention(TiledAttention() if has_tiles else attention.attend)
    return attend(query, key, value, terms, dropout=dropout)


def _sizes(*tensors: Tensor | None) -> dict[str, int]:
    """Return the size of each axis; all tensors that have it must agree."""
    sizes: dict[str, int] = {}
    query = tensors[0]
    for (name, axes), tensor in zip(AXES.items(), tensors, strict=True):
        if tensor is None and name not in REQUIRED:
            continue
        if not isinstance(tensor, Tensor) or not isinstance(query, Tensor):
            raise UsageError(f"{name} is of type {type(tensor).__name__}; give a tensor ({', '.join(axes)})")
        fits = tensor.is_floating_point() and tensor.device == query.device
        if not fits or (name in REQUIRED and tensor.dtype != query.dtype):
            raise UsageError(
                f"{name} is {tensor.dtype} on {tensor.device}; give floating-point tensors on the device of query, and "
                "key and value with its dtype"
            )
        shape = tuple(tensor.shape)
        expected = tuple(sizes.setdefault(axis, size) for axis, size in zip(axes, shape, strict=False))
        if len(shape) != len(axes) or shape != expected or 0 in shape:
            known = ", ".join(f"{axis} = {sizes[axis]}" for axis in axes if sizes.get(axis))
            raise UsageError(f"{name} is ({', '.join(axes)}) with {known}, not {shape}")
    return sizes
