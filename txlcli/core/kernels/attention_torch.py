"""Attention with relative positions by PyTorch's fused kernels and by FlexAttention.

Axes: B batch, L segment, K keys, H heads, D head width, n distances scored, m of them with a position key.
"""

import contextlib
import functools
import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.device import row_multiple


@functools.cache
def _compiled_flex() -> Callable[..., Any]:
    """Return FlexAttention compiled: at its first use, and once more for lengths that vary."""
    return torch.compile(flex_attention)


def _seen_blocks(seg_len: int, key_len: int, reach: int, device: torch.device) -> BlockMask:
    """Return the blocks of 128 x 128 scores that FlexAttention computes: those with some key that is seen."""

    def seen(batch: Tensor, head: Tensor, query: Tensor, at: Tensor) -> Tensor:
        distance = query + (key_len - seg_len) - at
        return (distance >= 0) & (distance < reach)

    with torch.inference_mode(False):  # a training run may use it later
        return create_block_mask(seen, None, None, seg_len, key_len, device=str(device))


_kept_blocks = functools.lru_cache(maxsize=8)(_seen_blocks)
"""`_seen_blocks`, kept for all layers."""


def sdpa(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
    """`core.backend.Attend` that passes the position score to scaled_dot_product_attention as its mask."""
    inputs = AttentionInputs.of(query, key, value, terms)
    missing = -inputs.key_len % row_multiple(inputs.key.device)
    with torch.autocast(query.device.type, enabled=False):
        mask = by_key(inputs)
        # The fused kernels want rows, and the first of them, to begin at multiples of 16 bytes.
        mask = F.pad(mask, (0, missing))[..., : inputs.key_len] if missing else mask.contiguous()
        with _fused_kernels(query.device):
            out = F.scaled_dot_product_attention(
                inputs.query_content, inputs.key, inputs.value, attn_mask=mask, dropout_p=dropout, scale=1.0
            )
    return out[..., : query.shape[3]]


def _fused_kernels(device: torch.device) -> AbstractContextManager[None]:
    """Choose among PyTorch's fused kernels on CUDA: the same in training and in evaluation.

    cuDNN, which PyTorch prefers on Hopper where the mask needs no gradient, makes a plan for each length of the keys
    and has had wrong gradients with masks.
    """
    if device.type != "cuda":
        return contextlib.nullcontext()
    kernels: AbstractContextManager[None] = sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH])
    return kernels


def flex(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
    """`core.backend.Attend`, without dropout: FlexAttention looks up the position score by distance."""
    inputs = AttentionInputs.of(query, key, value, terms)
    with torch.autocast(query.device.type, enabled=False):
        return _flex(inputs)[..., : query.shape[3]]


def _flex(inputs: AttentionInputs) -> Tensor:
    mem_len = inputs.key_len - inputs.seg_len
    by_distance = None
    if inputs.position_key is not None:
        by_distance = inputs.query_position @ inputs.position_key.mT  # (B, H, L, m)

    def modify(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, at: Tensor) -> Tensor:
        if by_distance is None:
            return score
        # Row c is distance m - 1 - c, row 0 also all that are farther. Keys of the future count for nothing; each has a
        # row of its own, so that the zeros of their gradient are not all added to one address.
        row = by_distance.shape[3] - 1 - (query + mem_len - at).abs()
        return score + by_distance[batch, head, query, row.clamp(min=0)]

    compiling = torch.compiler.is_compiling()  # a layer, of which this becomes a part
    seen = _seen_blocks if compiling else _kept_blocks
    attend: Any = flex_attention if compiling else _compiled_flex()
    out: Tensor = attend(
        inputs.query_content,
        inputs.key,
        inputs.value,
        score_mod=modify,
        block_mask=seen(inputs.seg_len, inputs.key_len, inputs.reach, inputs.key.device),
        scale=1.0,
    )
    return out


def by_key(inputs: AttentionInputs) -> Tensor:
    """Return the position score by key (B, H, L, K), shifted as in Appendix B; -inf for keys that are not seen."""
    seg_len, key_len, reach = inputs.seg_len, inputs.key_len, inputs.reach
    if inputs.position_key is None:
        by_distance = inputs.query.new_zeros(1, 1, seg_len, reach)
    else:
        by_distance = inputs.query_position @ inputs.position_key.mT  # (B, H, L, m)
        farther = by_distance[..., :1].expand(-1, -1, -1, reach - by_distance.shape[3])
        by_distance = torch.cat([farther, by_distance], dim=-1)  # (B, H, L, n)
    # Columns for all distances from K - 1 down to those of the future; each row begins one earlier than the one before.
    padded = F.pad(by_distance, (key_len - reach, seg_len - 1), value=-math.inf)
    if seg_len == 1:
        return padded
    width = key_len + seg_len - 1
    moved = padded.flatten(-2)[..., seg_len - 1 : seg_len - 1 + seg_len * (width - 1)]
    return moved.unflatten(-1, (seg_len, width - 1))[..., :key_len]
