"""Attention with relative distances by PyTorch's own means: written out, by its fused kernels, by FlexAttention.

All of them give what `attention.attend` says; its axes and arguments are theirs.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """FlexAttention, whose kernels are made at the first use for every new shape."""
    return torch.compile(flex_attention, dynamic=False)


def reference(
    query_content: Tensor,
    query_position: Tensor | None,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    *,
    reach: int,
    dropout: float,
) -> Tensor:
    """Every step of 3.3 as an operation of its own."""
    scores = query_content @ key.mT + by_key(query_position, position_key, reach, query_content, key)
    probabilities = torch.softmax(scores, dim=-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    kept = F.dropout(probabilities, dropout) if dropout else probabilities
    return kept.to(value.dtype) @ value


def sdpa(
    query_content: Tensor,
    query_position: Tensor | None,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    *,
    reach: int,
    dropout: float,
) -> Tensor:
    """The position score as the mask of scaled_dot_product_attention."""
    mask = by_key(query_position, position_key, reach, query_content, key)
    return F.scaled_dot_product_attention(query_content, key, value, attn_mask=mask, dropout_p=dropout, scale=1.0)


def flex(
    query_content: Tensor,
    query_position: Tensor | None,
    key: Tensor,
    value: Tensor,
    position_key: Tensor | None,
    *,
    reach: int,
) -> Tensor:
    """The position score looked up by distance inside FlexAttention; no scores by key are ever written."""
    mem_len = key.shape[2] - query_content.shape[2]
    by_distance = None if query_position is None or position_key is None else query_position @ position_key.mT

    def modify(score: Tensor, lane: Tensor, head: Tensor, query: Tensor, at: Tensor) -> Tensor:
        distance = query + mem_len - at
        if by_distance is not None:
            known = by_distance.shape[3]  # row c is distance m - 1 - c, row 0 also all that are farther
            score = score + by_distance[lane, head, query, (known - 1 - distance).clamp(0, known - 1)]
        return torch.where((distance < 0) | (distance >= reach), -math.inf, score)

    out: Tensor = _compiled_flex()(query_content, key, value, score_mod=modify, scale=1.0)
    return out


def by_key(
    query_position: Tensor | None, position_key: Tensor | None, reach: int, query_content: Tensor, key: Tensor
) -> Tensor:
    """The position score of every key (B, H, L, K), -inf for keys that are not seen: shifted as in Appendix B."""
    seg_len, key_len = query_content.shape[2], key.shape[2]
    if query_position is None or position_key is None:
        by_distance = query_content.new_zeros(1, 1, seg_len, reach)
    else:
        by_distance = query_position @ position_key.mT  # (B, H, L, m)
        farther = by_distance[..., :1].expand(-1, -1, -1, reach - by_distance.shape[3])
        by_distance = torch.cat([farther, by_distance], dim=-1)  # (B, H, L, n)
    # Columns for all distances from K - 1 down to those of the future; each row begins one later than the one before.
    padded = F.pad(by_distance, (key_len - reach, seg_len - 1), value=-math.inf)
    if seg_len == 1:
        return padded
    width = key_len + seg_len - 1
    moved = padded.flatten(-2)[..., seg_len - 1 : seg_len - 1 + seg_len * (width - 1)]
    return moved.unflatten(-1, (seg_len, width - 1))[..., :key_len]
