"""Relative Effective Context Length of a group of models (section 4.3, Appendix C), and the losses that it is from.

The loss at a context of c is -log P(x_t | x_(t-1) ... x_(t-c)): a model with memory starts with its first memory and
reads the c tokens in segments; a model with a recurrent state starts with its first state; a model without memory
reads one window, up to the number of its positions.

Axes: N models of the group, C context lengths, T positions; W texts side by side, c tokens of context, P positions.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.scoring import Stream
from txlcli.core.reading.windows import read_windows

Losses = NDArray[np.floating]


def sample_positions(count: int, *, longest: int, sample_size: int, seed: int) -> NDArray[np.int64]:
    """Sample distinct positions of T predicted tokens that have `longest` tokens before them, in order.

    A larger sample contains the smaller one of the same seed.
    """
    order = np.random.default_rng(seed).permutation(count)
    return np.sort(order[order >= longest - 1][:sample_size])


def read_length(model: LanguageModel, settings: EvalSettings, context_len: int) -> int:
    """Return how many of the last c tokens a model reads: all, or at most the positions that a window has."""
    longest = model.settings.longest_window if settings.mem_len == 0 else None
    return context_len if longest is None else min(context_len, longest)


def context_losses(stream: Stream, positions: NDArray[np.int64], *, context_len: int) -> NDArray[np.float32]:
    """Return the losses of the targets at positions (P,) in nats, each from the last c inputs only, W at most at once.

    W is the batch size of the settings, and M = 0 a model without memory. Positions are at least c - 1; c is a result
    of `read_length`. `Stream.on_tokens` is called with the number of tokens read.
    """
    if stream.settings.mem_len == 0 and not stream.model.settings.recurrent_state:
        stream = replace(stream, settings=stream.settings.with_windows(context_len))
    count = math.ceil(len(positions) / stream.settings.batch_size)
    batches = np.array_split(positions, count)  # nearly equal, the largest first
    losses = list[Tensor]()
    read = 0
    last_positions = ((batch, 1) for batch in batches)
    for _, window_losses in read_windows(stream, last_positions, context_len):
        losses.append(window_losses[:, 0].cpu())
        read += context_len * len(window_losses)
        stream.on_tokens(read)
    return torch.cat(losses).numpy()


@dataclass(frozen=True)
class Gain:
    """Gain of a model from a longer context, from c to c', on the hardest positions."""

    from_tokens: int
    """c."""
    to_tokens: int
    """c'."""
    baseline_nats: float
    """f_i(c, c), the mean of b(c, t) over T; the same for all models."""
    relative_loss_nats: float
    """f_i(c, c')."""
    relative_gain: float
    """g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)."""
    ppl_gain: float
    """exp f_i(c, c) - exp f_i(c, c'), unnormalized (Figure 3)."""


@dataclass(frozen=True, kw_only=True)
class Recl:
    """Context length at which the gain of one model falls below the threshold, on a share of the positions."""

    top_r: float
    recl_tokens: int
    grid_ended: bool
    """True if every step gained, so that the RECL is at least this length."""
    gains: tuple[Gain, ...]

    @property
    def bound(self) -> str:
        """Mark of a RECL that is only a bound: ">= " if every step gained, "<= " if not even the first one did."""
        if self.grid_ended:
            return ">= "
        return "<= " if self.recl_tokens == self.gains[0].from_tokens else ""


def hardest_positions(baseline: Losses, top_r: float) -> NDArray[np.intp]:
    """Return the set T = top-r positions t with largest b(c, t), ascending, at least one; of equal ones the earlier."""
    count = max(1, round(top_r * len(baseline)))
    return np.sort(np.argsort(-baseline, kind="stable")[:count])


def relative_loss(baseline: Losses, losses_nats: Losses, hardest: NDArray[np.intp]) -> float:
    """Return f_i(c, c') = 1/|T| sum over t in T of min(b(c, t), l_i(c', t)); both losses (T,)."""
    counted = np.minimum(baseline[hardest], losses_nats[hardest])
    return float(counted.sum(dtype=np.float64) / len(hardest))


def gain(step: tuple[int, int], baseline_nats: float, relative_loss_nats: float) -> Gain:
    """Return the gain of a step from c to c', given f_i(c, c) and f_i(c, c')."""
    # Computed from one difference of nats, so that no perplexity can overflow.
    relative = float(1.0 - np.exp(relative_loss_nats - baseline_nats))
    with np.errstate(over="ignore"):
        ppl_gain = float(np.exp(baseline_nats) * relative)
    from_tokens, to_tokens = step
    return Gain(
        from_tokens=from_tokens,
        to_tokens=to_tokens,
        baseline_nats=baseline_nats,
        relative_loss_nats=relative_loss_nats,
        relative_gain=relative,
        ppl_gain=ppl_gain,
    )


def gains(losses_nats: Losses, contexts: Sequence[int], top_r: float) -> list[list[Gain]]:
    """Return the C - 1 gains of each model, from l_i(c, t), (N, C, T), for rising contexts; T is selected at each c."""
    baselines = losses_nats.min(axis=0)  # b(c, t) = min_i l_i(c, t), (C, T)
    all_gains: list[list[Gain]] = [[] for _ in losses_nats]
    for number, step in enumerate(pairwise(contexts)):
        baseline = baselines[number]
        hardest = hardest_positions(baseline, top_r)
        baseline_nats = relative_loss(baseline, baseline, hardest)
        for model_losses, model_gains in zip(losses_nats, all_gains, strict=True):
            longer_nats = relative_loss(baseline, model_losses[number + 1], hardest)
            model_gains.append(gain(step, baseline_nats, longer_nats))
    return all_gains


def recl(steps: Sequence[Gain], *, top_r: float, threshold: float) -> Recl:
    """Apply the algorithm of Appendix C: increase c while the gain reaches the threshold; RECL is the last c."""
    for step in steps:
        if step.relative_gain < threshold:
            return Recl(top_r=top_r, recl_tokens=step.from_tokens, grid_ended=False, gains=tuple(steps))
    return Recl(top_r=top_r, recl_tokens=steps[-1].to_tokens, grid_ended=True, gains=tuple(steps))
