"""Attention with relative positions as Triton kernels for CUDA: flash attention in distance space.

One product writes the position score of every query for every distance; probabilities are never written. The forward
kernel reads the position score skewed (query i, key j: column of distance M + i - j), adds the content score of a tile
of keys, and keeps a running softmax. The backward pass computes the probabilities of each tile again from the saved log
normalizer: one kernel for the gradients of keys and values, then one for the gradient of queries, which overwrites each
position score by its gradient. Every element has one writer, so there are no atomic additions, and repeated runs give
the same bits. Products in PyTorch then give the gradients of queries and position keys.

When there are few queries, as in evaluation, several programs divide the keys of the same queries (split-K).

Importing this module needs Triton. `core.kernels.compilation.check_attention` tells whether it can run.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key, P columns of a row of position scores (m, padded), S splits of the keys.
"""

import dataclasses
from typing import Any

import torch
import triton
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels import attention_triton_kernels as kernels
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.triton_launch import Launch, check_sequences, launch_of, splits_of

COLUMN_MULTIPLE = 8
"""P is a multiple of this: rows of 16-bit position scores begin at multiples of 16 bytes."""


def attend(
    query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0, splits: int | None = None
) -> Tensor:
    """`core.backend.Attend` in kernels that never write probabilities, for D up to 128 and dtypes of 16 or 32 bits.

    Without gradients, `splits` programs divide the keys of a query; by default their number depends on the sizes.
    """
    with torch.autocast(query.device.type, enabled=False):
        return _attend(query, key, value, terms, dropout, splits)


def _attend(query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, dropout: float, splits: int | None) -> Tensor:
    check_sequences(query)
    # The bias by distance is added to the position scores, not to the position keys.
    inputs = AttentionInputs.of(query, key, value, dataclasses.replace(terms, distance_bias=None))
    by_distance = _position_scores(inputs, terms.distance_bias)
    content, keys, values = map(_dense_rows, (inputs.query_content, inputs.key, inputs.value))
    shape = _Shape(inputs.reach, _count_columns(inputs, terms.distance_bias), dropout)
    if torch.is_grad_enabled() and _need_gradient(content, keys, values, by_distance):
        out: Tensor = _Attention.apply(shape, content, keys, values, by_distance)
    else:
        parts, log_total, _ = _forward(shape, content, keys, values, by_distance, splits=splits)
        out = _combine(parts, log_total, like=content)
    return out[..., : query.shape[3]]


def _need_gradient(*tensors: Tensor | None) -> bool:
    return any(tensor is not None and tensor.requires_grad for tensor in tensors)


def _dense_rows(rows: Tensor) -> Tensor:
    return rows if rows.stride(3) == 1 else rows.contiguous()


def _count_columns(inputs: AttentionInputs, distance_bias: Tensor | None) -> int:
    """Return the number of distances with a score of their own; 0 without position scores."""
    if distance_bias is not None:
        return inputs.reach
    if inputs.position_key is None:
        return 0
    shared = inputs.position_key.shape[1] < inputs.reach
    return inputs.reach if shared and inputs.position_key.requires_grad else inputs.position_key.shape[1]


def _position_scores(inputs: AttentionInputs, distance_bias: Tensor | None) -> Tensor | None:
    """Return the scores (H, B, L, P) of all distances: column c is distance m - 1 - c, from column m on is padding."""
    columns = _count_columns(inputs, distance_bias)
    if not columns:
        return None
    batch_size, heads, seg_len, _ = inputs.query.shape
    padding = -columns % COLUMN_MULTIPLE
    scores = None
    if inputs.position_key is not None:
        farther = inputs.position_key[:, :1].expand(-1, columns - inputs.position_key.shape[1], -1)
        position_key = F.pad(torch.cat([farther, inputs.position_key], dim=1), (0, 0, 0, padding))  # (H, P, D)
        rows = inputs.query_position.transpose(0, 1).reshape(heads, batch_size * seg_len, -1)
        scores = torch.bmm(rows, position_key.mT).view(heads, batch_size, seg_len, -1)
    if distance_bias is not None:
        bias = F.pad(distance_bias, (0, padding)).to(inputs.query.dtype)[:, None, None]  # (H, 1, 1, P)
        scores = bias.expand(-1, batch_size, seg_len, -1).contiguous() if scores is None else scores + bias
    return scores


class _Shape:
    """Numbers of one call that no tensor tells.

    Args:
        reach: n.
        columns: m; 0 without position scores.
        dropout: probability of dropping an attention weight.
    """

    def __init__(self, reach: int, columns: int, dropout: float) -> None:
        self.reach, self.columns = reach, columns
        self.dropped = round(dropout * 2**32)
        """Of 2**32 random numbers, those that drop an attention weight."""

    @property
    def keep_scale(self) -> float:
        """Factor of the attention weights that are kept; 0 if none is."""
        return 0.0 if self.dropped == 2**32 else 2**32 / (2**32 - self.dropped)

    def arguments(self) -> dict[str, Any]:
        """Return arguments that all kernels share."""
        threshold = min(self.dropped, 2**32 - 1) - 2**31
        numbers = {"reach": self.reach, "columns": self.columns, "threshold": threshold, "keep_scale": self.keep_scale}
        return {**numbers, "POSITIONS": self.columns > 0, "DROPOUT": self.dropped > 0}


def _forward(
    shape: _Shape, query: Tensor, key: Tensor, value: Tensor, by_distance: Tensor | None, *, splits: int | None = 1
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the outputs of S splits, (S, B, H, L, D), their log normalizers (S, B, H, L) to base 2, and the seed."""
    batch_size, heads, seg_len, width = query.shape
    launch = launch_of("forward", query.dtype, width)
    blocks = triton.cdiv(seg_len, launch.queries)
    splits = splits or splits_of(blocks * batch_size * heads, key.shape[2], launch, query.device)
    log_total = torch.empty(splits, batch_size, heads, seg_len, dtype=torch.float32, device=query.device)
    out = torch.empty_like(query)[None] if splits == 1 else log_total.new_empty(splits, *query.shape)
    seed = torch.randint(2**62, (1,), device=query.device) if shape.dropped else None
    kernels.forward_kernel[blocks, batch_size * heads, splits](
        query, key, value, by_distance, seed, out, log_total,
        *query.stride()[:3], *key.stride()[:3], *value.stride()[:3], *out.stride()[1:4],
        batch_size, heads, seg_len, key.shape[2], _pitch(by_distance),
        **shape.arguments(), **launch.arguments(width), SPLITS=splits,
    )  # fmt: skip
    return out, log_total, seed


def _combine(parts: Tensor, log_total: Tensor, like: Tensor) -> Tensor:
    """Combine the outputs of S splits by their log normalizers: the output (B, H, L, D) of all keys."""
    splits, batch_size, heads, seg_len, width = parts.shape
    if splits == 1:
        return parts[0]
    out = torch.empty_like(like)
    rows = batch_size * heads * seg_len
    kernels.combine_kernel[rows,](
        parts, log_total, out, *out.stride()[:3], heads, seg_len, rows,
        WIDTH=width, PADDED=Launch.padded(width), SPLITS=splits, PADDED_SPLITS=triton.next_power_of_2(splits),
    )  # fmt: skip
    return out


def _pitch(by_distance: Tensor | None) -> int:
    return 0 if by_distance is None else by_distance.shape[3]


class _Attention(torch.autograd.Function):
    """Attention that saves its inputs, output and log normalizers, and computes probabilities again."""

    @staticmethod
    def forward(ctx: Any, shape: _Shape, *tensors: Any) -> Tensor:
        parts, log_total, seed = _forward(shape, *tensors)
        out: Tensor = parts[0]
        ctx.save_for_backward(*tensors, out, log_total, seed)
        ctx.shape, ctx.spent = shape, False
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.spent:
            raise RuntimeError("attention triton: the first backward pass has overwritten the position scores")
        ctx.spent = True
        query, key, value, by_distance, out, log_total, seed = ctx.saved_tensors
        batch_size, heads, seg_len, width = query.shape
        grad_out = _dense_rows(grad_outputs[0])
        product = (grad_out.float() * out.float()).sum(-1).contiguous()  # (B, H, L), the sum over keys of P dP
        grad_query, grad_key, grad_value = (torch.empty_like(tensor) for tensor in (query, key, value))
        strides = [tensor.stride()[:3] for tensor in (query, key, value, grad_out)]
        sizes = (batch_size, heads, seg_len, key.shape[2], _pitch(by_distance))
        saved = (query, key, value, by_distance, seed, log_total, grad_out, product)
        flat = [number for group in strides for number in group]
        launch = launch_of("keys", query.dtype, width)
        kernels.backward_of_keys_kernel[triton.cdiv(key.shape[2], launch.keys), batch_size * heads](
            *saved, grad_key, grad_value, *flat, *grad_key.stride()[:3], *grad_value.stride()[:3], *sizes,
            **ctx.shape.arguments(), **launch.arguments(width),
        )  # fmt: skip
        launch = launch_of("queries", query.dtype, width)
        kernels.backward_of_queries_kernel[triton.cdiv(seg_len, launch.queries), batch_size * heads](
            *saved, grad_query, *flat, *grad_query.stride()[:3], *sizes,
            **ctx.shape.arguments(), **launch.arguments(width),
        )  # fmt: skip
        return None, grad_query, grad_key, grad_value, by_distance
