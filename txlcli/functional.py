"""Attention with relative positions as a function, for models of your own: section 3.3 and Appendix B of the paper.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key of their own.
"""

from torch import Tensor

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_tiles import TiledAttention
from txlcli.core.model import attention
from txlcli.core.model.backends import FastAttention
from txlcli.errors import UsageError


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
        UsageError: if the shapes do not fit.
    """
    seg_len, key_len = query.shape[2], key.shape[2]
    reach = min(window or key_len, key_len)
    if key.shape != value.shape or seg_len > key_len or query.shape[3] != key.shape[3]:
        shapes = ", ".join(
            f"{name} {tuple(tensor.shape)}" for name, tensor in zip("qkv", (query, key, value), strict=True)
        )
        raise UsageError(f"queries are (B, H, L, D), keys and values (B, H, K, D) with K at least L, not {shapes}")
    if distance_bias is not None and distance_bias.shape[1] != reach:
        raise UsageError(f"distance_bias needs {reach} columns, one for each distance, not {distance_bias.shape[1]}")
    if position_key is not None:
        position_key = position_key[:, max(0, position_key.shape[1] - reach) :]
    terms = ScoreTerms(reach, position_key, content_bias, position_bias, distance_bias)
    has_kernels = query.device.type in ("cpu", "cuda")
    attend = FastAttention(TiledAttention()) if has_kernels else attention.attend
    return attend(query, key, value, terms, dropout=dropout)
