"""Relative Effective Context Length of a group of models (section 4.3, Appendix C), computed from their losses.

Axes: N models of the group, C context lengths, T positions.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Losses = NDArray[np.floating]


@dataclass(frozen=True, kw_only=True)
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

    @property
    def relative_gain(self) -> float:
        """g_i(c, c') = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)."""
        # Computed from one difference of nats, so that no perplexity can overflow.
        return float(1.0 - np.exp(self.relative_loss_nats - self.baseline_nats))

    @property
    def ppl_gain(self) -> float:
        """exp f_i(c, c) - exp f_i(c, c'), unnormalized (Figure 3)."""
        with np.errstate(over="ignore"):
            return float(np.exp(self.baseline_nats) * self.relative_gain)


@dataclass(frozen=True, kw_only=True)
class Recl:
    """Context length at which the gain of one model falls below the threshold, on a share of the positions."""

    top_r: float
    recl_tokens: int
    grid_ended: bool
    """True if every step gained, so that the RECL is at least this length."""
    gains: tuple[Gain, ...]


def hardest_positions(baseline: Losses, top_r: float) -> NDArray[np.intp]:
    """Return the set T = top-r positions t with largest b(c, t), ascending, at least one; of equal ones the earlier."""
    count = max(1, round(top_r * len(baseline)))
    return np.sort(np.argsort(-baseline, kind="stable")[:count])


def relative_loss(baseline: Losses, losses_nats: Losses, hardest: NDArray[np.intp]) -> float:
    """Return f_i(c, c') = 1/|T| sum over t in T of min(b(c, t), l_i(c', t)); both losses (T,)."""
    counted = np.minimum(baseline[hardest], losses_nats[hardest])
    return float(counted.sum(dtype=np.float64) / len(hardest))


def gains(losses_nats: Losses, contexts: Sequence[int], top_r: float) -> list[list[Gain]]:
    """Return the C - 1 gains of each model, from l_i(c, t), (N, C, T), for rising contexts; T is selected at each c."""
    baselines = losses_nats.min(axis=0)  # b(c, t) = min_i l_i(c, t), (C, T)
    hardest = [hardest_positions(baseline, top_r) for baseline in baselines]
    return [
        [
            Gain(
                from_tokens=contexts[step],
                to_tokens=contexts[step + 1],
                baseline_nats=relative_loss(baselines[step], baselines[step], hardest[step]),
                relative_loss_nats=relative_loss(baselines[step], of_model[step + 1], hardest[step]),
            )
            for step in range(len(contexts) - 1)
        ]
        for of_model in losses_nats
    ]


def recl(steps: Sequence[Gain], *, top_r: float, threshold: float) -> Recl:
    """Apply the algorithm of Appendix C: increase c while the gain reaches the threshold; RECL is the last c."""
    last = next((step.from_tokens for step in steps if step.relative_gain < threshold), None)
    tokens = steps[-1].to_tokens if last is None else last
    return Recl(top_r=top_r, recl_tokens=tokens, grid_ended=last is None, gains=tuple(steps))
