"""Attention with relative positions in distance space, tile by tile, with its own gradient: the default.

A tile holds the scores that fit into a CPU's cache: of several sequences of the batch; or, if one sequence is too long
for that, of a block of its queries, with the keys up to the last of them, so that most of the future is never computed.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key. In one tile: b sequences, l queries, k keys.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.backend import ScoreTerms
from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.device import generator_state, set_generator_state
from txlcli.core.kernels.dropout import keep_mask
from txlcli.core.kernels.private import softmax_backward
from txlcli.core.kernels.score_buffer import HALF_DTYPES, ScoreShape, Workspace, fits_in_one_tile


class TiledAttention:
    """`core.model.attention.attend` in distance space.

    Args:
        workspace: score buffers that other layers have used and will use again; a new one by default.
        recompute: keep no probabilities for the backward pass, which computes them again.
    """

    def __init__(self, workspace: Workspace | None = None, *, recompute: bool = False) -> None:
        self.workspace = workspace or Workspace()
        self.recompute = recompute

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, L, D), see `core.backend.Attend`."""
        inputs = AttentionInputs.of(query, key, value, terms)
        with torch.autocast(query.device.type, enabled=False):
            if torch.is_grad_enabled() and inputs.need_gradient:
                inputs = inputs.with_all_position_keys()
                out: Tensor = _Attention.apply(self, inputs.reach, dropout, *inputs.tensors)
            else:
                out = _attend(inputs, self.workspace, dropout=dropout, save=False)[0]
        return out[..., : query.shape[3]]


@dataclass(frozen=True, kw_only=True)
class Tile:
    """Scores that are computed together."""

    first: int
    """Index of the first sequence."""
    sequences: int
    """b."""
    begin: int
    """Index of the first query in the segment."""
    queries: int
    """l."""
    keys: int
    """k, up to the position of the last query."""

    def select_queries(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, L, x) as (b * H, l, x)."""
        return self._slice_queries(tensor).flatten(0, 1)

    def select_biased_queries(self, query: Tensor, bias: Tensor | None) -> Tensor:
        """Return the tile's queries (b * H, l, D) of (B, H, L, D), with a bias (H, 1, D) added."""
        if bias is None:
            return _dense(self.select_queries(query))
        selected = self._slice_queries(query)
        return torch.add(selected, bias, out=query.new_empty(selected.shape)).flatten(0, 1)

    def select_keys(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, K, D) as (b * H, k, D)."""
        return tensor[self.first : self.first + self.sequences, :, : self.keys].flatten(0, 1)

    def select_scores(self, tensor: Tensor) -> Tensor:
        """Return the tile's part of (B, H, L, K) as (b * H, l, k)."""
        return self.select_queries(tensor)[:, :, : self.keys]

    def _slice_queries(self, tensor: Tensor) -> Tensor:
        return tensor[self.first : self.first + self.sequences, :, self.begin : self.begin + self.queries]


@dataclass(frozen=True, kw_only=True)
class Tiling:
    """Division of the scores of one call into tiles."""

    sequences: int
    """b of every tile, a divisor of B."""
    queries: int
    """l of every tile, at most; all of a segment's if a tile holds several sequences."""

    @classmethod
    def of(cls, inputs: AttentionInputs, workspace: Workspace) -> "Tiling":
        """Put everything into one tile on a GPU, and on a CPU as much as the cache holds."""
        batch_size, heads, seg_len, _ = inputs.query.shape
        if fits_in_one_tile(inputs.key.device):
            return cls(sequences=batch_size, queries=seg_len)
        row_bytes = heads * (inputs.key_len + seg_len - 1) * inputs.key.element_size()  # of one query
        most = min(batch_size, max(1, workspace.cache_bytes // (row_bytes * seg_len)))
        divisor = next(count for count in range(most, 0, -1) if batch_size % count == 0)
        return cls(sequences=divisor, queries=workspace.block_of_queries(seg_len, row_bytes))

    def score_shape(self, inputs: AttentionInputs) -> ScoreShape:
        """Return the sizes of the scores of the largest tile."""
        return ScoreShape(
            rows=self.sequences * inputs.key.shape[1],
            seg_len=self.queries,
            key_len=inputs.key_len,
            reach=inputs.reach,
        )

    def tiles(self, inputs: AttentionInputs) -> Iterator[Tile]:
        """Yield the tiles of one sequence after the other, the last block of queries first: it sees all of the keys."""
        others = inputs.key_len - inputs.seg_len  # keys that are not of the queries
        for first in range(0, inputs.query.shape[0], self.sequences):
            for end in range(inputs.seg_len, 0, -self.queries):
                begin = max(0, end - self.queries)
                yield Tile(first=first, sequences=self.sequences, begin=begin, queries=end - begin, keys=others + end)


def _dense(rows: Tensor) -> Tensor:
    """Return rows in the layout that a batch of products reads fastest.

    In 16 bits on a CPU the product copies rows with gaps itself, slowly if they are transposed.
    """
    return rows.contiguous() if rows.device.type == "cpu" and rows.dtype in HALF_DTYPES else rows


def _repeat_for_sequences(position_key: Tensor, sequences: int) -> Tensor:
    """Repeat (H, n, D) for each sequence of a tile: (b * H, n, D)."""
    return _dense(position_key) if sequences == 1 else position_key.repeat(sequences, 1, 1)


def _multiply_into(target: Tensor, left: Tensor, right: Tensor) -> None:
    """Write a batch of products; on a CPU that is fast only into a contiguous tensor."""
    if target.is_contiguous() and target.dtype == left.dtype:
        torch.bmm(left, right, out=target)
    else:
        target.copy_(torch.bmm(left, right))


class _Probabilities:
    """Softmax of the scores, computed tile by tile, once or again."""

    def __init__(self, inputs: AttentionInputs, tiling: Tiling, workspace: Workspace) -> None:
        position_key = inputs.position_key
        self._inputs, self._workspace = inputs, workspace
        self._shape = tiling.score_shape(inputs)
        self._buffer = workspace.acquire("scores", inputs.key, self._shape)
        self._scratch: Tensor | None = None  # scores of one tile, which the next one overwrites
        if position_key is None:
            self._buffer.by_distance.zero_()
        else:
            self._position_key_rows = _repeat_for_sequences(position_key, tiling.sequences)  # (b*H, m, D)

    def compute(self, tile: Tile, *, keep: bool = False) -> Tensor:
        """Return the probabilities of a tile, (b*H, l, k); unless `keep`, the next tile overwrites them."""
        inputs, buffer, rows = self._inputs, self._buffer.view(tile.queries, tile.keys), self._shape.rows
        if keep:
            out = inputs.key.new_empty(rows, tile.queries, tile.keys)
        else:
            if self._scratch is None:
                self._scratch = inputs.key.new_empty(rows * self._shape.seg_len * self._shape.key_len)
            out = self._scratch[: rows * tile.queries * tile.keys].view(rows, tile.queries, tile.keys)
        if inputs.position_key is not None:
            query = tile.select_biased_queries(inputs.query, inputs.position_bias)
            buffer.multiply(query, _dense(self._position_key_rows[:, -tile.keys :]), scratch=out)
        query = tile.select_biased_queries(inputs.query, inputs.content_bias)
        key = _dense(tile.select_keys(inputs.key))
        torch.baddbmm(buffer.by_key, query, key.mT, out=out)
        return torch.softmax(out, dim=-1, out=out)

    def release(self) -> None:
        """Release the score buffer."""
        self._workspace.release(self._buffer)


def _attend(
    inputs: AttentionInputs, workspace: Workspace, *, dropout: float, save: bool
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """Return the output (B, H, L, D), each tile's probabilities (b*H, l, k) if `save`, and the dropout mask."""
    query, key = inputs.query, inputs.key
    tiling = Tiling.of(inputs, workspace)
    probabilities = _Probabilities(inputs, tiling, workspace)
    mask = keep_mask(torch.Size((*query.shape[:3], inputs.key_len)), dropout, key.device) if dropout else None
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
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


class _Attention(torch.autograd.Function):
    """Attention whose scores are in distance space; forward and backward go tile by tile."""

    @staticmethod
    def forward(ctx: Any, tiled: TiledAttention, reach: int, dropout: float, *tensors: Any) -> Tensor:
        inputs = AttentionInputs(reach, *tensors)
        ctx.tiled, ctx.reach, ctx.dropout, recompute = tiled, reach, dropout, tiled.recompute
        ctx.rng_state = generator_state(inputs.key.device) if recompute and dropout else None
        out, probabilities, mask = _attend(inputs, tiled.workspace, dropout=dropout, save=not recompute)
        ctx.save_for_backward(*tensors, None if recompute else mask, *probabilities)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        kept = ctx.saved_tensors  # read once: a layer that is computed again gives them once
        tensors, mask, saved = kept[:6], kept[6], kept[7:]
        inputs, workspace = AttentionInputs(ctx.reach, *tensors), ctx.tiled.workspace
        query, key = inputs.query, inputs.key
        tiling = Tiling.of(inputs, workspace)
        recomputed = _Probabilities(inputs, tiling, workspace) if ctx.tiled.recompute else None
        if ctx.rng_state is not None:
            shape = torch.Size((*query.shape[:3], inputs.key_len))
            mask = _sample_again(ctx.rng_state, shape, ctx.dropout, key.device)
        exact = torch.promote_types(key.dtype, torch.float32)  # sums over tiles need more than 16 bits
        keys_dtype = key.dtype if tiling.queries == inputs.seg_len else exact
        grad_content = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key, grad_value = (key.new_empty(key.shape, dtype=keys_dtype) for _ in range(2))
        position = None
        if inputs.position_key is not None:
            position = _PositionGradients(inputs, inputs.position_key, tiling, workspace)
        # The scale of dropout is applied here, to rows of D, not of K.
        grad_all = grad_outputs[0] if mask is None else grad_outputs[0] * (1 / (1 - ctx.dropout))
        for number, tile in enumerate(tiling.tiles(inputs)):
            grad_out = tile.select_queries(grad_all)  # (b*H, l, D)
            probability = recomputed.compute(tile) if recomputed else saved[number]  # (b*H, l, k)
            used = probability
            grad_probability = torch.bmm(_dense(grad_out), _dense(tile.select_keys(inputs.value)).mT)
            if mask is not None:
                used = probability * tile.select_scores(mask)
                grad_probability.mul_(tile.select_scores(mask))
            grad_score = softmax_backward(grad_probability, probability)
            _multiply_into(tile.select_queries(grad_content), grad_score, _dense(tile.select_keys(key)))
            _accumulate(tile, grad_key, grad_score.mT, tile.select_biased_queries(query, inputs.content_bias))
            _accumulate(tile, grad_value, used.mT, _dense(grad_out))
            if position is not None:
                position.add(grad_score, tile)
        if recomputed is not None:
            recomputed.release()
        grad_content_bias = None if inputs.content_bias is None else _sum_over_queries(grad_content)
        grad_query, grad_position_bias, grad_position_key = grad_content, None, None
        if position is not None:
            grad_position, grad_position_key = position.release()
            grad_position_bias = None if inputs.position_bias is None else _sum_over_queries(grad_position)
            grad_query = grad_content.add_(grad_position)
        grad_key, grad_value = grad_key.to(key.dtype), grad_value.to(key.dtype)
        grads = (grad_query, grad_key, grad_value, grad_content_bias, grad_position_bias, grad_position_key)
        return None, None, None, *grads


def _sum_over_queries(grad_query: Tensor) -> Tensor:
    """Return the gradient (H, 1, D) of a bias that was added to every query (B, H, L, D)."""
    return grad_query.sum((0, 2))[:, None]


def _accumulate(tile: Tile, grad: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a tile's product to the gradient (B, H, K, D) of keys or values; a sequence's first tile has all keys."""
    target = tile.select_keys(grad)
    if tile.keys == grad.shape[2]:
        _multiply_into(target, left, right)
    else:
        target += torch.bmm(left, right)


def _sample_again(state: Tensor, shape: torch.Size, rate: float, device: torch.device) -> Tensor:
    """Return the mask that was sampled from this state of the generator, without changing its present state."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        set_generator_state(state, device)
        return keep_mask(shape, rate, device)


class _PositionGradients:
    """Gradients of the two factors of the position score, accumulated tile by tile."""

    def __init__(self, inputs: AttentionInputs, position_key: Tensor, tiling: Tiling, workspace: Workspace) -> None:
        self._heads = position_key.shape[0]
        self._query, self._bias, self._workspace = inputs.query, inputs.position_bias, workspace
        self._buffer = workspace.acquire("gradients", position_key, tiling.score_shape(inputs))
        self._key_rows = _repeat_for_sequences(position_key, tiling.sequences)  # (b*H, n, D)
        self._grad_query = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
        exact = torch.promote_types(position_key.dtype, torch.float32)  # sums over tiles need more than 16 bits
        self._grad_key = torch.zeros(position_key.shape, dtype=exact, device=position_key.device)
        self._dtype = position_key.dtype

    def add(self, grad_score: Tensor, tile: Tile) -> None:
        """Add the gradient of the scores of a tile (b*H, l, k)."""
        buffer = self._buffer.view(tile.queries, tile.keys)
        buffer.write_by_key(grad_score)
        by_distance = _dense(buffer.by_distance)  # (b*H, l, n)
        query = tile.select_biased_queries(self._query, self._bias)
        key_rows = _dense(self._key_rows[:, -tile.keys :])
        _multiply_into(tile.select_queries(self._grad_query), by_distance, key_rows)
        grad_key = self._grad_key[:, -tile.keys :]  # (H, n, D), or the k nearest of n distances
        if tile.sequences == 1 and grad_key.is_contiguous() and grad_key.dtype == self._dtype:
            torch.baddbmm(grad_key, by_distance.mT, query, out=grad_key)
        else:
            by_row = torch.bmm(by_distance.mT, query)  # (b*H, n, D)
            grad_key += by_row.unflatten(0, (tile.sequences, self._heads)).sum(0) if tile.sequences > 1 else by_row

    def release(self) -> tuple[Tensor, Tensor]:
        """Release the buffer; return the gradients of queries (B, H, L, D) and position keys (H, n, D)."""
        self._workspace.release(self._buffer)
        return self._grad_query, self._grad_key.to(self._dtype)
