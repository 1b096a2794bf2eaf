"""Relative Effective Context Length of a group of models (section 4.3, Appendix C), computed from their losses.

Axes: N models of the group, C context lengths, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.floating]
THRESHOLD = 0.01
"""Relative gain below which a longer context no longer counts (Appendix C)."""


@dataclass(frozen=True, kw_only=True)
class Gain:
    """Gain of a model from a longer context, from c to c', on the hardest positions."""

    context_len: int
    """c, tokens."""
    longer_context_len: int
    """c', tokens."""
    baseline_nats: float
    """f_i(c, c), the mean of b(c, t) over T; the same for all models."""
    relative_loss_nats: float
    """f_i(c, c')."""

    @property
    def relative(self) -> float:
        """g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)."""
        # Computed from one difference of nats, so that no perplexity can overflow.
        return float(1.0 - np.exp(self.relative_loss_nats - self.baseline_nats))

    @property
    def ppl(self) -> float:
        """exp f_i(c, c) - exp f_i(c, c'), unnormalized (Figure 3)."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.baseline_nats) * self.relative)


@dataclass(frozen=True)
class Recl:
    """Context length at which the gain of one model falls below the threshold."""

    context_len: int
    """RECL, tokens."""
    grid_ended: bool
    """True if every step gained, so that the RECL is at least this length."""


def group_baseline(losses_nats: Losses) -> Losses:
    """Return b(c, t) = min_i l_i(c, t): losses (N, T) at one context length -> (T,)."""
    best: Losses = losses_nats.min(axis=0)
    return best


def hardest_positions(baseline: Losses, top_r: float) -> NDArray[np.intp]:
    """Return the set T = top-r positions t with largest b(c, t), at least one; of equal ones the earlier.

    Args:
        baseline: b(c, t), (T,).
        top_r: r, above 0 and at most 1.
    Returns:
        Indices of positions, ascending.
    """
    count = max(1, round(top_r * len(baseline)))
    return np.sort(np.argsort(-baseline, kind="stable")[:count])


def relative_loss(baseline: Losses, losses_nats: Losses, hardest: NDArray[np.intp]) -> float:
    """Return f_i(c, c') = 1/|T| sum over t in T of min(b(c, t), l_i(c', t)); both losses (T,)."""
    counted = np.minimum(baseline[hardest], losses_nats[hardest])
    return float(counted.sum(dtype=np.float64) / len(hardest))


def gains(losses_nats: Losses, contexts: Sequence[int], top_r: float) -> list[list[Gain]]:
    """Return the gain of every model at every step of the grid; T is selected at each c.

    Args:
        losses_nats: l_i(c, t), (N, C, T).
        contexts: the C context lengths, ascending.
        top_r: r.
    Returns:
        For each model, its C - 1 gains.
    """
    by_model: list[list[Gain]] = [[] for _ in losses_nats]
    for step in range(len(contexts) - 1):
        baseline = group_baseline(losses_nats[:, step])
        hardest = hardest_positions(baseline, top_r)
        at_baseline = relative_loss(baseline, baseline, hardest)
        for model, model_gains in enumerate(by_model):
            longer = relative_loss(baseline, losses_nats[model, step + 1], hardest)
            model_gains.append(
                Gain(
                    context_len=contexts[step],
                    longer_context_len=contexts[step + 1],
                    baseline_nats=at_baseline,
                    relative_loss_nats=longer,
                )
            )
    return by_model


def recl(steps: Sequence[Gain], threshold: float = THRESHOLD) -> Recl:
    """Apply the algorithm of Appendix C: increase c while the gain reaches the threshold; RECL is the last c."""
    for step in steps:
        if step.relative < threshold:
            return Recl(step.context_len, grid_ended=False)
    return Recl(steps[-1].longer_context_len, grid_ended=True)
