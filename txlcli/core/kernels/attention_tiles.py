"""Attention with relative positions in distance space, tile by tile, with its own gradient: the default.

A tile holds the scores that fit into a CPU's cache: of several sequences of the batch; or, if one sequence is too long
for that, of a block of its queries, with the keys up to the last of them, so that most of the future is never computed.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key. In one tile: b sequences, l queries, k keys.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.device import forked_generators, generator_state, set_generator_state
from txlcli.core.kernels.dropout import keep_mask
from txlcli.core.kernels.modes import computes_as_gpu
from txlcli.core.kernels.private import softmax_backward
from txlcli.core.kernels.score_buffer import HALF_DTYPES, ScoreBuffers, ScoreShape


class TiledAttention:
    """`core.model.attention.attend` in distance space.

    Args:
        buffers: score buffers that other layers have used and will use again; a new one by default.
        recompute: keep no probabilities for the backward pass, which computes them again.
    """

    def __init__(self, buffers: ScoreBuffers | None = None, *, recompute: bool = False) -> None:
        self.buffers = buffers or ScoreBuffers()
        self.recompute = recompute

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, L, D), see `core.backend.Attend`."""
        inputs = AttentionInputs.of(query, key, value, terms)
        with torch.autocast(query.device.type, enabled=False):
            if torch.is_grad_enabled() and inputs.need_gradient:
                out: Tensor = _Attention.apply(self, dropout, *inputs)
            else:
                out = _attend(inputs, self.buffers, dropout=dropout, save=False)[0]
        return out[..., : query.shape[3]]


class ScoreTile(NamedTuple):
    """Scores that are computed together."""

    sequences: slice
    """The b sequences of the batch."""
    queries: slice
    """The l queries of the segment."""
    keys: int
    """k, up to the position of the last query."""

    def select_queries(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, L, x) as (b * H, l, x)."""
        return tensor[self.sequences, :, self.queries].flatten(0, 1)

    def select_biased_queries(self, query: Tensor, bias: Tensor | None) -> Tensor:
        """Return the tile's queries (b * H, l, D) of (B, H, L, D), with a bias (H, 1, D) added."""
        if bias is None:
            return _dense(self.select_queries(query))
        selected = query[self.sequences, :, self.queries]  # (b, H, l, D)
        biased = query.new_empty(selected.shape)  # contiguous, which the result of `+` need not be
        torch.add(selected, bias, out=biased)
        return biased.flatten(0, 1)

    def select_keys(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, K, D) as (b * H, k, D)."""
        return tensor[self.sequences, :, : self.keys].flatten(0, 1)

    def select_scores(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, L, K) as (b * H, l, k)."""
        return self.select_queries(tensor)[:, :, : self.keys]


class Tiling(NamedTuple):
    """Division of the scores of one call into tiles."""

    sequences: int
    """b of every tile, a divisor of B."""
    queries: int
    """l of every tile, at most; all of a segment's if a tile holds several sequences."""
    scores: ScoreShape
    """Sizes of the scores of the largest tile."""

    @classmethod
    def of(cls, inputs: AttentionInputs, buffers: ScoreBuffers) -> "Tiling":
        """Put everything into one tile on a GPU, and on a CPU as much as the cache holds."""
        batch_size, heads, seg_len, _ = inputs.query.shape
        key_len = inputs.key.shape[2]
        sequences = batch_size
        queries = seg_len
        if not computes_as_gpu(inputs.key.device):
            row_bytes = heads * (key_len + seg_len - 1) * inputs.key.element_size()  # of one query
            fitting_sequences = min(batch_size, max(1, buffers.cache_bytes // (row_bytes * seg_len)))
            sequences = _largest_divisor(batch_size, fitting_sequences)
            fitting_queries = max(buffers.cache_bytes // row_bytes, buffers.min_queries)
            queries = math.ceil(seg_len / max(1, seg_len // fitting_queries))
        scores = ScoreShape(sequences * heads, queries, key_len, inputs.reach)
        return cls(sequences, queries, scores)

    def tiles(self, inputs: AttentionInputs) -> Iterator[ScoreTile]:
        """Yield the tiles of one sequence after the other, the last block of queries first: it sees all of the keys."""
        batch_size, _, seg_len, _ = inputs.query.shape
        mem_len = inputs.key.shape[2] - seg_len
        for first in range(0, batch_size, self.sequences):
            for end in range(seg_len, 0, -self.queries):
                queries = slice(max(0, end - self.queries), end)
                yield ScoreTile(slice(first, first + self.sequences), queries, keys=mem_len + end)


def _largest_divisor(number: int, limit: int) -> int:
    """Return the largest divisor of a number up to a limit."""
    while number % limit:
        limit -= 1
    return limit


def _dense(rows: Tensor) -> Tensor:
    """Return rows in the layout that a batch of products reads fastest.

    In 16 bits on a CPU the product copies rows with gaps itself, slowly if they are transposed.
    """
    if rows.device.type == "cpu" and rows.dtype in HALF_DTYPES:
        return rows.contiguous()
    return rows


def _repeat_for_sequences(by_distance: Tensor, sequences: int) -> Tensor:
    """Repeat (H, n, x) for each sequence of a tile: (b * H, n, x)."""
    if sequences == 1:
        return _dense(by_distance)
    return by_distance.repeat(sequences, 1, 1)


def _multiply_into(target: Tensor, left: Tensor, right: Tensor) -> None:
    """Write a batch of products; on a CPU that is fast only into a contiguous tensor."""
    if target.is_contiguous() and target.dtype == left.dtype:
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))


class _Probabilities:
    """Softmax of the scores, computed tile by tile, once or again."""

    def __init__(self, inputs: AttentionInputs, tiling: Tiling, buffers: ScoreBuffers) -> None:
        self._inputs = inputs
        self._buffers = buffers
        self._buffer = buffers.acquire(inputs.key, tiling.scores, fill=-math.inf)
        self._out: Tensor | None = None  # probabilities of one tile, which the next one overwrites
        if inputs.position_key is None:
            self._buffer.by_distance.zero_()
        else:
            self._position_key = _repeat_for_sequences(inputs.position_key, tiling.sequences)  # (b*H, m, D)
        self._bias = inputs.distance_bias
        if self._bias is not None:
            self._bias = _repeat_for_sequences(self._bias, tiling.sequences)  # (b*H, 1, n)

    def compute(self, tile: ScoreTile, *, keep: bool = False) -> Tensor:
        """Return the probabilities of a tile, (b*H, l, k); unless `keep`, the next tile overwrites them."""
        inputs = self._inputs
        query = tile.select_biased_queries(inputs.query, inputs.content_bias)
        buffer = self._buffer.view(query.shape[1], tile.keys)
        shape = buffer.by_key.shape
        if keep or self._out is None:  # the first tile is the largest
            self._out = query.new_empty(shape.numel())
        out = self._out[: shape.numel()].view(shape)
        if inputs.position_key is not None:
            position_query = tile.select_biased_queries(inputs.query, inputs.position_bias)
            position_key = _dense(self._position_key[:, -tile.keys :])
            bias = self._bias
            if bias is not None:
                bias = bias[:, :, -tile.keys :]
            buffer.multiply(position_query, position_key, bias, scratch=out)
        key = _dense(tile.select_keys(inputs.key))
        torch.baddbmm(buffer.by_key, query, key.mT, out=out)
        if inputs.unseen is not None:
            unseen = inputs.unseen[tile.sequences, :, tile.queries, : tile.keys]  # (b, 1, l, k)
            out.unflatten(0, (len(unseen), -1)).masked_fill_(unseen, -math.inf)
        return torch.softmax(out, dim=-1, out=out)

    def release(self) -> None:
        """Release the score buffer."""
        self._buffers.release(self._buffer)


def _attend(
    inputs: AttentionInputs, buffers: ScoreBuffers, *, dropout: float, save: bool
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return the output (B, H, L, D), each tile's probabilities (b*H, l, k) if `save`, and the dropout mask."""
    tiling = Tiling.of(inputs, buffers)
    probabilities = _Probabilities(inputs, tiling, buffers)
    mask: Tensor | None = None
    if dropout:
        mask = keep_mask(_score_shape(inputs), dropout, inputs.key.device)
    out = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
    saved: list[Tensor] = []
    for tile in tiling.tiles(inputs):
        probability = probabilities.compute(tile, keep=save)
        if save:
            saved.append(probability)
        if mask is not None:
            probability = probability * tile.select_scores(mask)
        _multiply_into(tile.select_queries(out), probability, _dense(tile.select_keys(inputs.value)))
    if mask is not None:
        out.mul_(1 / (1 - dropout))
    probabilities.release()
    return out, saved, mask


def _score_shape(inputs: AttentionInputs) -> torch.Size:
    """Return the shape of all scores, (B, H, L, K)."""
    return torch.Size((*inputs.query.shape[:3], inputs.key.shape[2]))


class _Attention(torch.autograd.Function):
    """Attention whose scores are in distance space; forward and backward go tile by tile."""

    @staticmethod
    def forward(ctx: Any, tiled: TiledAttention, dropout: float, reach: int, *tensors: Any) -> Tensor:
        inputs = AttentionInputs(reach, *tensors)
        ctx.tiled = tiled
        ctx.reach = reach
        ctx.dropout = dropout
        ctx.rng_state = None
        if tiled.recompute and dropout:
            ctx.rng_state = generator_state(inputs.key.device)
        out, probabilities, mask = _attend(inputs, tiled.buffers, dropout=dropout, save=not tiled.recompute)
        if tiled.recompute:
            mask = None
        ctx.save_for_backward(*tensors, mask, *probabilities)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # read once: a layer that is computed again gives them once
        inputs = AttentionInputs(ctx.reach, *saved[:INPUT_TENSORS])
        mask = saved[INPUT_TENSORS]
        saved_probabilities = saved[INPUT_TENSORS + 1 :]
        buffers = ctx.tiled.buffers
        tiling = Tiling.of(inputs, buffers)
        recomputed: _Probabilities | None = None
        if ctx.tiled.recompute:
            recomputed = _Probabilities(inputs, tiling, buffers)
        if ctx.rng_state is not None:
            mask = _sample_again(ctx.rng_state, _score_shape(inputs), ctx.dropout, inputs.key.device)
        grad_all = grad_outputs[0]
        if mask is not None:
            grad_all = grad_all * (1 / (1 - ctx.dropout))  # the scale of dropout, applied to rows of D, not of K
        grads = _Gradients(inputs, tiling, buffers)
        for number, tile in enumerate(tiling.tiles(inputs)):
            probability = recomputed.compute(tile) if recomputed else saved_probabilities[number]  # (b*H, l, k)
            grad_out = tile.select_queries(grad_all)  # (b*H, l, D)
            value = _dense(tile.select_keys(inputs.value))  # (b*H, k, D)
            grad_probability = torch.bmm(_dense(grad_out), value.mT)
            used = probability
            if mask is not None:
                mask_of_tile = tile.select_scores(mask)
                used = probability * mask_of_tile
                grad_probability.mul_(mask_of_tile)
            grad_score = softmax_backward(grad_probability, probability)
            grads.add(tile, grad_score, used, grad_out)
        if recomputed is not None:
            recomputed.release()
        return None, None, None, *grads.collect()


INPUT_TENSORS = len(AttentionInputs._fields) - 1
"""Number of the tensors among the arguments of attention: all fields but `reach`."""


class _Gradients:
    """Gradients of the tensors of attention, accumulated tile by tile."""

    def __init__(self, inputs: AttentionInputs, tiling: Tiling, buffers: ScoreBuffers) -> None:
        self._inputs = inputs
        key = inputs.key
        keys_dtype = key.dtype
        if tiling.queries != inputs.query.shape[2]:
            keys_dtype = torch.promote_types(key.dtype, torch.float32)  # sums over tiles need more than 16 bits
        self._grad_query = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
        self._grad_key = key.new_empty(key.shape, dtype=keys_dtype)
        self._grad_value = key.new_empty(key.shape, dtype=keys_dtype)
        self._position: _PositionGradients | None = None
        if inputs.position_key is not None:
            self._position = _PositionGradients(inputs, tiling, buffers)

    def add(self, tile: ScoreTile, grad_score: Tensor, used: Tensor, grad_out: Tensor) -> None:
        """Add what a tile contributes.

        Args:
            tile: one of the tiles, in their order.
            grad_score: gradient of its scores, (b*H, l, k).
            used: its probabilities, masked by dropout but not scaled, (b*H, l, k).
            grad_out: gradient of its outputs, times the scale of dropout, (b*H, l, D).
        """
        inputs = self._inputs
        key = _dense(tile.select_keys(inputs.key))
        _multiply_into(tile.select_queries(self._grad_query), grad_score, key)
        query = tile.select_biased_queries(inputs.query, inputs.content_bias)
        _accumulate(tile, self._grad_key, grad_score.mT, query)
        _accumulate(tile, self._grad_value, used.mT, _dense(grad_out))
        if self._position is not None:
            self._position.add(grad_score, tile)

    def collect(self) -> tuple[Tensor | None, ...]:
        """Return the gradients in the order of the fields of `AttentionInputs`, and release the buffers."""
        grad_content_bias: Tensor | None = None
        if self._inputs.content_bias is not None:
            grad_content_bias = _sum_over_queries(self._grad_query)
        of_position: tuple[Tensor | None, ...] = (None, None, None)
        if self._position is not None:
            self._grad_query.add_(self._position.grad_query)
            of_position = self._position.release()
        return self._grad_query, self._grad_key, self._grad_value, grad_content_bias, *of_position, None


def _sum_over_queries(grad_query: Tensor) -> Tensor:
    """Return the gradient (H, 1, D) of a bias that was added to every query (B, H, L, D)."""
    return grad_query.sum((0, 2))[:, None]


def _accumulate(tile: ScoreTile, grad: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a tile's product to the gradient (B, H, K, D) of keys or values; a sequence's first tile has all keys."""
    target = tile.select_keys(grad)
    if tile.keys == grad.shape[2]:
        _multiply_into(target, left, right)
    else:
        target += torch.bmm(left, right)


def _sample_again(state: Tensor, shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    """Return the mask that was sampled from this state of the generator, without changing its present state."""
    with forked_generators(device):
        set_generator_state(state, device)
        return keep_mask(shape, rate, device)


class _PositionGradients:
    """Gradients of the position score, accumulated tile by tile."""

    def __init__(self, inputs: AttentionInputs, tiling: Tiling, buffers: ScoreBuffers) -> None:
        assert inputs.position_key is not None
        position_key = inputs.position_key
        self._heads = len(position_key)
        self._inputs = inputs
        self._buffers = buffers
        self._buffer = buffers.acquire(position_key, tiling.scores, fill=0.0)
        self._key_rows = _repeat_for_sequences(position_key, tiling.sequences)  # (b*H, n, D)
        self.grad_query = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
        exact = torch.promote_types(position_key.dtype, torch.float32)  # sums over tiles need more than 16 bits
        self._grad_key = torch.zeros(position_key.shape, dtype=exact, device=position_key.device)
        self._grad_distance_bias: Tensor | None = None
        if inputs.distance_bias is not None and inputs.distance_bias.requires_grad:
            self._grad_distance_bias = torch.zeros_like(inputs.distance_bias, dtype=exact)

    def add(self, grad_score: Tensor, tile: ScoreTile) -> None:
        """Add the gradient of the scores of a tile (b*H, l, k)."""
        buffer = self._buffer.view(grad_score.shape[1], tile.keys)
        buffer.write_by_key(grad_score)
        by_distance = _dense(buffer.by_distance)  # (b*H, l, n)
        query = tile.select_biased_queries(self._inputs.query, self._inputs.position_bias)
        key_rows = _dense(self._key_rows[:, -tile.keys :])
        _multiply_into(tile.select_queries(self.grad_query), by_distance, key_rows)
        grad_key = self._grad_key[:, -tile.keys :]  # (H, n, D), or the k nearest of n distances
        if len(by_distance) == self._heads and grad_key.is_contiguous() and grad_key.dtype == query.dtype:
            torch.baddbmm(grad_key, by_distance.mT, query, out=grad_key)
        else:
            grad_key += self._over_sequences(torch.bmm(by_distance.mT, query))  # of (b*H, n, D)
        if self._grad_distance_bias is not None:
            sums = by_distance.sum(1, keepdim=True, dtype=self._grad_distance_bias.dtype)
            self._grad_distance_bias[:, :, -tile.keys :] += self._over_sequences(sums)

    def _over_sequences(self, by_row: Tensor) -> Tensor:
        """Add up the sequences of a tile: (b*H, x, y) -> (H, x, y)."""
        if len(by_row) == self._heads:
            return by_row
        return by_row.unflatten(0, (-1, self._heads)).sum(0)

    def release(self) -> tuple[Tensor | None, Tensor, Tensor | None]:
        """Release the buffer; return the gradients of position bias (H, 1, D), keys (H, n, D) and distance bias."""
        self._buffers.release(self._buffer)
        grad_position_bias: Tensor | None = None
        if self._inputs.position_bias is not None:
            grad_position_bias = _sum_over_queries(self.grad_query)
        return grad_position_bias, self._grad_key, self._grad_distance_bias
