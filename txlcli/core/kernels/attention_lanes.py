"""Attention with relative distances as txl computes it: in distance space, pass by pass, with its own gradient.

A pass scores what a CPU's cache holds: a few lanes; or of one lane that is too long for that a block of queries, with
the keys up to the last one of them, so that most of the future is never computed.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key. In one pass: l queries, k keys, H rows per lane.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.kernels.attention_inputs import AttentionInputs
from txlcli.core.kernels.distance_space import HALF_DTYPES, PaddedScoreBuffer, Workspace
from txlcli.core.kernels.dropout_mask import keep_mask
from txlcli.core.kernels.private import softmax_backward

CACHE_BYTES = 4 << 20
"""Scores of one pass that still stay in a CPU's cache (measured: more is slower, less is no faster)."""
FEWEST_QUERIES = 128
"""In a block of queries: fewer of them gain nothing on a CPU (measured)."""


class LaneAttention:
    """`core.model.attention.attend` in distance space: the default.

    Args:
        workspace: score buffers that other layers have used and will use again; a new one by default.
        recompute: keep no probabilities for the backward pass, which computes them again.
    """

    def __init__(self, workspace: Workspace | None = None, *, recompute: bool = False) -> None:
        self.workspace = workspace or Workspace()
        self.recompute = recompute

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float = 0.0, **terms: Any) -> Tensor:
        """Return (B, H, L, D); the arguments are those of `core.model.attention.attend`."""
        inputs = AttentionInputs.of(query, key, value, **terms)
        with torch.autocast(query.device.type, enabled=False):
            out = _attend_lanes(inputs, dropout=dropout, recompute=self.recompute, workspace=self.workspace)
        return out[..., : query.shape[3]]


@torch.compiler.disable
def _attend_lanes(inputs: AttentionInputs, *, dropout: float, recompute: bool, workspace: Workspace) -> Tensor:
    if torch.is_grad_enabled() and inputs.need_gradient:
        out: Tensor = _Attention.apply(inputs.reach, dropout, recompute, workspace, *inputs.tensors)
        return out
    return _attend(inputs, dropout=dropout, save=False, workspace=workspace)[0]


@dataclass(frozen=True, kw_only=True)
class _Pass:
    """What is scored at once."""

    first: int
    """The first lane."""
    lanes: int
    begin: int
    """The first query's place in the segment."""
    queries: int
    """l."""
    keys: int
    """k, those up to the last query's own."""

    def of_queries(self, tensor: Tensor) -> Tensor:
        """The pass's part of (B, H, L, x) as (lanes * H, l, x)."""
        return self._own(tensor).flatten(0, 1)

    def biased(self, query: Tensor, bias: Tensor | None) -> Tensor:
        """The pass's queries (lanes * H, l, D) of (B, H, L, D), with a bias (H, 1, D) added to them."""
        if bias is None:
            return _dense(self.of_queries(query))
        own = self._own(query)
        return torch.add(own, bias, out=query.new_empty(own.shape)).flatten(0, 1)

    def of_keys(self, tensor: Tensor) -> Tensor:
        """The pass's part of (B, H, K, D) as (lanes * H, k, D)."""
        return tensor[self.first : self.first + self.lanes, :, : self.keys].flatten(0, 1)

    def of_scores(self, tensor: Tensor) -> Tensor:
        """The pass's part of (B, H, L, K) as (lanes * H, l, k)."""
        return self.of_queries(tensor)[:, :, : self.keys]

    def scores(self, inputs: AttentionInputs) -> torch.Size:
        """(lanes * H, l, k)."""
        return torch.Size((self.lanes * inputs.key.shape[1], self.queries, self.keys))

    def _own(self, tensor: Tensor) -> Tensor:
        return tensor[self.first : self.first + self.lanes, :, self.begin : self.begin + self.queries]


@dataclass(frozen=True, kw_only=True)
class _Plan:
    """How attention is cut into passes."""

    lanes: int
    """Per pass; a divisor of B."""
    queries: int
    """Per pass, at most; all of a segment's where a pass takes several lanes."""

    @classmethod
    def of(cls, inputs: AttentionInputs, workspace: Workspace) -> "_Plan":
        """All in one pass on a GPU, as much as the cache holds on a CPU."""
        lanes, heads, seg_len, _ = inputs.query.shape
        if workspace.at_once or inputs.key.device.type != "cpu":
            return cls(lanes=lanes, queries=seg_len)
        row_bytes = heads * (inputs.key_len + seg_len - 1) * inputs.key.element_size()  # of one query
        fitting = CACHE_BYTES // row_bytes  # queries
        if fitting >= seg_len:
            most = min(lanes, fitting // seg_len)
            divisor = next(count for count in range(most, 0, -1) if lanes % count == 0)
            return cls(lanes=divisor, queries=seg_len)
        blocks = max(1, seg_len // max(fitting, FEWEST_QUERIES))
        return cls(lanes=1, queries=math.ceil(seg_len / blocks))

    def room(self, inputs: AttentionInputs) -> int:
        """Scores of the largest pass."""
        return self.lanes * inputs.key.shape[1] * self.queries * inputs.key_len

    def passes(self, inputs: AttentionInputs) -> Iterator[_Pass]:
        """Lane by lane the blocks of queries, the last one first: it sees all of the keys."""
        mem_len = inputs.key_len - inputs.seg_len
        for first in range(0, inputs.query.shape[0], self.lanes):
            for end in range(inputs.seg_len, 0, -self.queries):
                begin = max(0, end - self.queries)
                yield _Pass(first=first, lanes=self.lanes, begin=begin, queries=end - begin, keys=mem_len + end)


def _dense(rows: Tensor) -> Tensor:
    """The rows as a batch of products should read them.

    In 16 bits on a CPU it copies rows with gaps, slowly if they are transposed: better to copy them beforehand.
    """
    return rows.contiguous() if rows.device.type == "cpu" and rows.dtype in HALF_DTYPES else rows


def _for_lanes(position_key: Tensor, lanes: int) -> Tensor:
    """(H, n, D) for each lane of a pass, (lanes * H, n, D)."""
    return _dense(position_key) if lanes == 1 else position_key.repeat(lanes, 1, 1)


def _multiply_into(place: Tensor, left: Tensor, right: Tensor) -> None:
    """Write a batch of products; on a CPU that is quick only where the place has no gaps."""
    if place.is_contiguous() and place.dtype == left.dtype:
        torch.bmm(left, right, out=place)
    else:
        place.copy_(torch.bmm(left, right))


class _Probabilities:
    """Softmax of the scores, a pass at a time, as often as they are asked for."""

    def __init__(self, inputs: AttentionInputs, plan: _Plan, workspace: Workspace) -> None:
        heads, position_key, reach = inputs.key.shape[1], inputs.position_key, inputs.reach
        self._inputs, self._plan, self._workspace = inputs, plan, workspace
        self._room: Tensor | None = None  # memory for one pass, which the next one overwrites
        known = reach if position_key is None else position_key.shape[1]
        self._space = workspace.acquire(
            "scores",
            inputs.key,
            rows=plan.lanes * heads,
            seg_len=plan.queries,
            key_len=inputs.key_len,
            reach=reach,
            position_keys=known,
        )
        if position_key is None:
            self._space.by_distance.zero_()
        else:
            self._position_key_rows = _for_lanes(position_key, plan.lanes)  # (lanes*H, m, D)

    def of(self, part: _Pass, *, keep: bool = False) -> Tensor:
        """Those of a pass, (lanes*H, l, k); unless `keep`, the next pass overwrites them."""
        inputs, space = self._inputs, self._space.view(part.queries, part.keys)
        shape = part.scores(inputs)
        if keep:
            out = inputs.key.new_empty(shape)
        else:
            if self._room is None:
                self._room = inputs.key.new_empty(self._plan.room(inputs))
            out = self._room[: shape.numel()].view(shape)
        if inputs.position_key is not None:
            query = part.biased(inputs.query, inputs.position_bias)
            space.multiply(query, _dense(self._position_key_rows[:, -part.keys :]))
        query, key = part.biased(inputs.query, inputs.content_bias), _dense(part.of_keys(inputs.key))
        torch.baddbmm(space.masked_by_key(out), query, key.mT, out=out)
        return torch.softmax(out, dim=-1, out=out)

    def finish(self) -> None:
        """Let others use the workspace."""
        self._workspace.release(self._space)


def _attend(
    inputs: AttentionInputs, *, dropout: float, save: bool, workspace: Workspace
) -> tuple[Tensor, list[Tensor], Tensor | None]:
    """The output (B, H, L, D), each pass's probabilities (lanes*H, l, k) if `save`, and the mask of dropout."""
    query, key = inputs.query, inputs.key
    plan = _Plan.of(inputs, workspace)
    probabilities = _Probabilities(inputs, plan, workspace)
    mask = keep_mask(torch.Size((*query.shape[:3], inputs.key_len)), dropout, key.device) if dropout else None
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    saved: list[Tensor] = []
    for part in plan.passes(inputs):
        probability = probabilities.of(part, keep=save)
        if save:
            saved.append(probability)
        if mask is not None:
            probability = probability * part.of_scores(mask)
        _multiply_into(part.of_queries(out), probability, _dense(part.of_keys(inputs.value)))
    if mask is not None:
        out.mul_(1 / (1 - dropout))
    probabilities.finish()
    return out, saved, mask


class _Attention(torch.autograd.Function):
    """Attention whose scores live in distance space; forward and backward go pass by pass."""

    @staticmethod
    def forward(ctx: Any, reach: int, dropout: float, recompute: bool, workspace: Workspace, *tensors: Any) -> Tensor:
        query, key, value, content_bias, position_bias, position_key = tensors
        inputs = AttentionInputs(query, key, value, content_bias, position_bias, position_key, reach)
        ctx.drawn_from = _generator_state(inputs.key.device) if recompute and dropout else None
        out, probabilities, mask = _attend(inputs, dropout=dropout, save=not recompute, workspace=workspace)
        ctx.save_for_backward(*tensors, None if recompute else mask, *probabilities)
        ctx.reach, ctx.dropout, ctx.recompute, ctx.workspace = reach, dropout, recompute, workspace
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, content_bias, position_bias, position_key, mask, *saved = ctx.saved_tensors
        inputs = AttentionInputs(query, key, value, content_bias, position_bias, position_key, ctx.reach)
        plan = _Plan.of(inputs, ctx.workspace)
        recomputed = _Probabilities(inputs, plan, ctx.workspace) if ctx.recompute else None
        if ctx.drawn_from is not None:
            shape = torch.Size((*query.shape[:3], inputs.key_len))
            mask = _drawn_again(ctx.drawn_from, shape, ctx.dropout, key.device)
        exact = torch.promote_types(key.dtype, torch.float32)  # sums over passes need more than 16 bits
        of_keys = key.dtype if plan.queries == inputs.seg_len else exact
        grad_content = torch.empty_like(query, memory_format=torch.contiguous_format)
        grad_key, grad_value = (key.new_empty(key.shape, dtype=of_keys) for _ in range(2))
        position = None
        if position_key is not None:
            position = _PositionGradients(inputs, position_key, plan, ctx.workspace)
        # What dropout keeps is scaled here, in rows of D, not of K.
        grad_all = grad_outputs[0] if mask is None else grad_outputs[0] * (1 / (1 - ctx.dropout))
        for number, part in enumerate(plan.passes(inputs)):
            grad_out = part.of_queries(grad_all)  # (lanes*H, l, D)
            probability = recomputed.of(part) if recomputed else saved[number]  # (lanes*H, l, k)
            used = probability
            grad_probability = torch.bmm(_dense(grad_out), _dense(part.of_keys(value)).mT)
            if mask is not None:
                used = probability * part.of_scores(mask)
                grad_probability.mul_(part.of_scores(mask))
            grad_score = softmax_backward(grad_probability, probability)
            _multiply_into(part.of_queries(grad_content), grad_score, _dense(part.of_keys(key)))
            _collect(part, grad_key, grad_score.mT, part.biased(query, content_bias))
            _collect(part, grad_value, used.mT, _dense(grad_out))
            if position is not None:
                position.add(grad_score, part)
        if recomputed is not None:
            recomputed.finish()
        grad_content_bias = None if content_bias is None else _of_bias(grad_content)
        grad_query, grad_position_bias, grad_position_key = grad_content, None, None
        if position is not None:
            grad_position, grad_position_key = position.finish()
            grad_position_bias = None if position_bias is None else _of_bias(grad_position)
            grad_query = grad_content.add_(grad_position)
        grad_key, grad_value = grad_key.to(key.dtype), grad_value.to(key.dtype)
        grads = (grad_query, grad_key, grad_value, grad_content_bias, grad_position_bias, grad_position_key)
        return None, None, None, None, *grads


def _of_bias(grad_query: Tensor) -> Tensor:
    """The gradient (H, 1, D) of what was added to every query (B, H, L, D)."""
    return grad_query.sum((0, 2))[:, None]


def _collect(part: _Pass, grad: Tensor, left: Tensor, right: Tensor) -> None:
    """Add a pass's product to the gradient (B, H, K, D) of keys or values; a lane's first pass has all of them."""
    place = part.of_keys(grad)
    if part.keys == grad.shape[2]:
        _multiply_into(place, left, right)
    else:
        place += torch.bmm(left, right)


def _generator_state(device: torch.device) -> Tensor:
    """The state of PyTorch's generator of a device."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _drawn_again(state: Tensor, shape: torch.Size, share: float, device: torch.device) -> Tensor:
    """The mask that was drawn from this state of the generator, whose present state is left as it is."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []):
        if on_cuda:
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        return keep_mask(shape, share, device)


class _PositionGradients:
    """Gradients of the position score's two factors, collected a pass at a time."""

    def __init__(
        self,
        inputs: AttentionInputs,
        position_key: Tensor,
        plan: _Plan,
        workspace: Workspace,
    ) -> None:
        self._heads = position_key.shape[0]
        self._query, self._bias, self._workspace = inputs.query, inputs.position_bias, workspace
        space = workspace.acquire(
            "gradients",
            position_key,
            rows=plan.lanes * self._heads,
            seg_len=plan.queries,
            key_len=inputs.key_len,
            reach=inputs.reach,
        )
        assert isinstance(space, PaddedScoreBuffer)
        self._space = space
        self._key_rows = _for_lanes(position_key, plan.lanes)  # (lanes*H, n, D)
        self._grad_query = torch.empty_like(inputs.query, memory_format=torch.contiguous_format)
        exact = torch.promote_types(position_key.dtype, torch.float32)  # sums over passes need more than 16 bits
        self._grad_key = torch.zeros(position_key.shape, dtype=exact, device=position_key.device)
        self._dtype = position_key.dtype

    def add(self, grad_score: Tensor, part: _Pass) -> None:
        """Take the gradient of a pass's scores (lanes*H, l, k)."""
        space = self._space.view(part.queries, part.keys)
        space.write_by_key(grad_score)
        by_distance = _dense(space.by_distance)  # (lanes*H, l, n)
        query = part.biased(self._query, self._bias)
        key_rows = _dense(self._key_rows[:, -part.keys :])
        _multiply_into(part.of_queries(self._grad_query), by_distance, key_rows)
        grad_key = self._grad_key[:, -part.keys :]  # (H, n, D), or the k nearest of n distances
        if part.lanes == 1 and grad_key.is_contiguous() and grad_key.dtype == self._dtype:
            torch.baddbmm(grad_key, by_distance.mT, query, out=grad_key)
        else:
            by_row = torch.bmm(by_distance.mT, query)  # (lanes*H, n, D)
            grad_key += by_row.unflatten(0, (part.lanes, self._heads)).sum(0) if part.lanes > 1 else by_row

    def finish(self) -> tuple[Tensor, Tensor]:
        """The gradients of the queries (B, H, L, D) and of the position keys (H, n, D); nothing is added later."""
        self._workspace.release(self._space)
        return self._grad_query, self._grad_key.to(self._dtype)
