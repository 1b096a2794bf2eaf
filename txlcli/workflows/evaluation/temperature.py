"""The temperature that logits are divided by: as given, or the one with the lowest loss on the validation split."""

from collections.abc import Callable
from typing import Protocol

from txlcli.workflows.evaluation.texts import Scoring
from txlcli.workflows.options import AUTO, EvalOptions
from txlcli.workflows.workspace import Workspace

STEP = 0.05
COLDEST, HOTTEST = -10, 20
"""Limits of the search, in steps from 1."""


def find_temperature(loss_at: Callable[[float], float]) -> float:
    """Return the temperature with the lowest loss: steps from 1 as long as it falls, then a parabola through three.

    The loss is convex in the inverse of the temperature, so it has one minimum.
    """
    losses = {step: loss_at(1 + step * STEP) for step in (-1, 0, 1)}
    while (best := min(losses, key=lambda step: losses[step])) in (min(losses), max(losses)):
        step = best + (1 if best == max(losses) else -1)
        if not COLDEST <= step <= HOTTEST:
            return 1 + best * STEP
        losses[step] = loss_at(1 + step * STEP)
    left, middle, right = (losses[best + offset] for offset in (-1, 0, 1))
    curvature = left - 2 * middle + right
    vertex = (left - right) / (2 * curvature) if curvature > 0 else 0.0
    return round(1 + (best + vertex) * STEP, 4)


class Row(Protocol):
    """Result for one setting."""

    @property
    def loss_nats(self) -> float:
        """Mean loss in nats per token."""


def with_temperature(
    scoring: Scoring, score: Callable[[Scoring], Row], options: EvalOptions, workspace: Workspace
) -> Scoring:
    """Return the scoring with a number as its temperature; `auto` is chosen on valid, which `score` scores."""
    if scoring.settings.temperature != AUTO:
        return scoring
    on_valid = scoring.on_valid(options.positions, workspace)
    if scoring.text.split == "valid":
        scoring.reporter.say("valid is used both for the temperature and for the result, which is slightly too good")
    temperature = find_temperature(lambda number: score(on_valid.changed(temperature=number)).loss_nats)
    scoring.reporter.say(f"temperature {temperature:g}, chosen on {len(on_valid.text.targets):,} tokens of valid")
    return scoring.changed(temperature=temperature)
