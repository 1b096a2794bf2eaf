"""Attention with relative distances as txl computes it: a few lanes at a time in distance space, with its own gradient.

Axes: B lanes, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.attention_inputs import AttentionInputs
from txlcli.core.distance_space import SHORT, Workspace
from txlcli.core.dropout import keep_mask

CACHE_BYTES = 4 << 20
"""Scores of one pass that still stay in a CPU's cache (measured: more is slower, less is no faster)."""


@torch.compiler.disable
def attend_by_lanes(inputs: AttentionInputs, *, dropout: float, recompute: bool, workspace: Workspace) -> Tensor:
    """`attention.attend` as it is by default."""
    if torch.is_grad_enabled() and inputs.need_gradient:
        out: Tensor = _Attention.apply(inputs.reach, dropout, recompute, workspace, *inputs.tensors)
        return out
    return _attend_lanes(inputs, dropout=dropout, save=False, workspace=workspace)[0]


def _lanes_at_once(lanes: int, heads: int, seg_len: int, key_len: int, like: Tensor) -> int:
    """How many lanes to score in one pass: all on CUDA, as many as the cache holds on a CPU; a divisor of `lanes`."""
    if like.device.type != "cpu":
        return lanes
    lane_bytes = heads * seg_len * (key_len + seg_len - 1) * like.element_size()
    most = max(1, min(lanes, CACHE_BYTES // lane_bytes))
    return next(count for count in range(most, 0, -1) if lanes % count == 0)


def _rows(tensor: Tensor, first: int, lanes: int) -> Tensor:
    """Lanes first .. first + lanes of (B, H, x, D) as (lanes * H, x, D)."""
    return _dense(tensor[first : first + lanes].flatten(0, 1))


def _dense(rows: Tensor) -> Tensor:
    """What a batch of products reads: without gaps where it would be copied anyway, and slowly if it is transposed.

    That is so in 16 bits on a CPU.
    """
    return rows.contiguous() if rows.device.type == "cpu" and rows.dtype in SHORT else rows


def _for_lanes(position_key: Tensor, lanes: int) -> Tensor:
    """(H, n, D) for each lane of a pass, (lanes * H, n, D)."""
    return _dense(position_key) if lanes == 1 else position_key.repeat(lanes, 1, 1)


class _Probabilities:
    """Softmax of the scores, a few lanes at a time, as often as they are asked for."""

    def __init__(self, inputs: AttentionInputs, workspace: Workspace) -> None:
        lanes, heads, seg_len, _ = inputs.query_content.shape
        key, position_key, reach = inputs.key, inputs.position_key, inputs.reach
        self.step = _lanes_at_once(lanes, heads, seg_len, inputs.key_len, key)
        """Lanes per pass."""
        self._inputs, self._workspace = inputs, workspace
        known = reach if position_key is None else position_key.shape[1]
        self._space = workspace.take("scores", self.step * heads, seg_len, inputs.key_len, reach, key, known=known)
        if position_key is None:
            self._space.by_distance.zero_()
        else:
            self._position_key_rows = _for_lanes(position_key, self.step)  # (step*H, m, D)

    def write(self, first: int, out: Tensor) -> None:
        """Those of the lanes from `first` on, into (step*H, L, K)."""
        inputs = self._inputs
        if inputs.query_position is not None:
            self._space.multiply(_rows(inputs.query_position, first, self.step), self._position_key_rows)
        query, key = _rows(inputs.query_content, first, self.step), _rows(inputs.key, first, self.step)
        torch.baddbmm(self._space.seen(out), query, key.mT, out=out)
        torch.softmax(out, dim=-1, out=out)

    def finish(self) -> None:
        """Let others use the workspace."""
        self._workspace.put_back(self._space)


def _attend_lanes(
    inputs: AttentionInputs, *, dropout: float, save: bool, workspace: Workspace
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """The output (B, H, L, D), the probabilities (B, H, L, K) if they are to be saved, and which were kept."""
    query, key = inputs.query_content, inputs.key
    lanes, heads, seg_len, _ = query.shape
    made = _Probabilities(inputs, workspace)
    shape = torch.Size((lanes, heads, seg_len, inputs.key_len))
    probabilities = key.new_empty(lanes if save else made.step, *shape[1:])
    kept = keep_mask(shape, dropout, key.device) if dropout else None
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    for first in range(0, lanes, made.step):
        probability = _rows(probabilities, first if save else 0, made.step)  # (step*H, L, K)
        made.write(first, probability)
        if kept is not None:
            probability = (probability * _rows(kept, first, made.step)).mul_(1 / (1 - dropout))
        torch.bmm(probability, _rows(inputs.value, first, made.step), out=_rows(out, first, made.step))
    made.finish()
    return out, probabilities if save else None, kept


class _Attention(torch.autograd.Function):
    """Attention whose scores live in distance space; forward and backward go a few lanes at a time."""

    @staticmethod
    def forward(ctx: Any, reach: int, dropout: float, recompute: bool, workspace: Workspace, *tensors: Any) -> Tensor:
        query_content, query_position, key, value, position_key = tensors
        inputs = AttentionInputs(query_content, query_position, key, value, position_key, reach)
        ctx.drawn_from = _generator_state(inputs.key.device) if recompute and dropout else None
        out, probabilities, kept = _attend_lanes(inputs, dropout=dropout, save=not recompute, workspace=workspace)
        ctx.save_for_backward(*tensors, probabilities, None if recompute else kept)
        ctx.reach, ctx.dropout, ctx.workspace = reach, dropout, workspace
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        query_content, query_position, key, value, position_key, probabilities, kept = ctx.saved_tensors
        lanes, heads, seg_len, _ = query_content.shape
        key_len = key.shape[2]
        step = _lanes_at_once(lanes, heads, seg_len, key_len, key)
        made = None
        if probabilities is None:
            inputs = AttentionInputs(query_content, query_position, key, value, position_key, ctx.reach)
            made = _Probabilities(inputs, ctx.workspace)
            again = key.new_empty(step * heads, seg_len, key_len)
        if ctx.drawn_from is not None:
            kept = _drawn_again(ctx.drawn_from, torch.Size((lanes, heads, seg_len, key_len)), ctx.dropout, key.device)
        grads = [torch.empty_like(one, memory_format=torch.contiguous_format) for one in (query_content, key, value)]
        position = None
        if position_key is not None:
            position = _PositionGradients(ctx.reach, query_position, key_len, position_key, step, ctx.workspace)
        for first in range(0, lanes, step):
            grad_query_content, grad_key, grad_value = (_rows(grad, first, step) for grad in grads)
            grad_out = _rows(grad_outputs[0], first, step)  # (step*H, L, D)
            if made is None:
                probability = _rows(probabilities, first, step)  # (step*H, L, K)
            else:
                made.write(first, again)
                probability = again
            used = probability
            grad_probability = torch.bmm(grad_out, _rows(value, first, step).mT)
            if kept is not None:
                mask, scale = _rows(kept, first, step), 1 / (1 - ctx.dropout)  # a 16-bit mask would round the scale
                used = (probability * mask).mul_(scale)
                grad_probability.mul_(mask).mul_(scale)
            grad_score = torch._softmax_backward_data(grad_probability, probability, -1, probability.dtype)
            torch.bmm(grad_score, _rows(key, first, step), out=grad_query_content)
            torch.bmm(grad_score.mT, _rows(query_content, first, step), out=grad_key)
            torch.bmm(used.mT, grad_out, out=grad_value)
            if position is not None:
                position.add(grad_score, first)
        if made is not None:
            made.finish()
        grad_query_position, grad_position_key = position.found() if position is not None else (None, None)
        return None, None, None, None, grads[0], grad_query_position, grads[1], grads[2], grad_position_key


def _generator_state(device: torch.device) -> Tensor:
    """Where PyTorch's generator of a device stands."""
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _drawn_again(state: Tensor, shape: torch.Size, share: float, device: torch.device) -> Tensor:
    """The mask that was drawn when the generator stood there; it goes on from where it stands now."""
    on_cuda = device.type == "cuda"
    with torch.random.fork_rng([device] if on_cuda else []):
        if on_cuda:
            torch.cuda.set_rng_state(state, device)
        else:
            torch.set_rng_state(state)
        return keep_mask(shape, share, device)


class _PositionGradients:
    """Gradients of the position score's two factors, collected a few lanes at a time."""

    def __init__(
        self, reach: int, query_position: Tensor, key_len: int, position_key: Tensor, step: int, workspace: Workspace
    ) -> None:
        _, heads, seg_len, _ = query_position.shape
        self._query, self._step, self._heads, self._workspace = query_position, step, heads, workspace
        self._space = workspace.take("gradients", step * heads, seg_len, key_len, reach, position_key)
        self._key_rows = _for_lanes(position_key, step)  # (step*H, n, D)
        self._grad_query = torch.empty_like(query_position, memory_format=torch.contiguous_format)
        exact = torch.promote_types(position_key.dtype, torch.float32)  # sums over lanes need more than 16 bits
        self._grad_key = torch.zeros(position_key.shape, dtype=exact, device=position_key.device)
        self._dtype = position_key.dtype

    def add(self, grad_score: Tensor, first: int) -> None:
        """Take the gradient of the scores (step*H, L, K) of the lanes from `first` on."""
        self._space.by_key.copy_(grad_score)
        by_distance = _dense(self._space.by_distance)  # (step*H, L, n)
        query = _rows(self._query, first, self._step)
        torch.bmm(by_distance, self._key_rows, out=_rows(self._grad_query, first, self._step))
        if self._step == 1 and self._grad_key.dtype == self._dtype:
            torch.baddbmm(self._grad_key, by_distance.mT, query, out=self._grad_key)
        else:
            by_row = torch.bmm(by_distance.mT, query)  # (step*H, n, D)
            self._grad_key += by_row.unflatten(0, (self._step, self._heads)).sum(0) if self._step > 1 else by_row

    def found(self) -> tuple[Tensor, Tensor]:
        """The gradients of the queries (B, H, L, D) and of the position keys (H, n, D); nothing is added later."""
        self._workspace.put_back(self._space)
        return self._grad_query, self._grad_key.to(self._dtype)
