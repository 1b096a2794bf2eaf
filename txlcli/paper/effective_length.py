"""The shortest length beyond which more context gains next to nothing: the effective context length of section 4.3."""

from collections.abc import Callable
from dataclasses import dataclass

from txlcli.paper.metrics import perplexity

THRESHOLD = 0.001  # relative gain of perplexity that still counts


@dataclass(frozen=True)
class Search:
    """What a search found."""

    length: int
    """The shortest length whose perplexity no longer length that was tried lowers by the threshold."""
    tried: dict[int, float]
    """Mean loss in nats by length, rising."""
    ended: bool
    """Whether the gains ended; otherwise the longest length that can be had still gains."""


def find(loss_at: Callable[[int], float], *, least: int, step: int, longest: int) -> Search:
    """Double the length until two doublings together gain too little, then halve the interval in which gains end.

    Args:
        loss_at: mean loss in nats at a length; asked once for each.
        least: shortest length.
        step: granularity; the second length.
        longest: the last length that may be asked for, at least `least`.
    """
    tried = {least: loss_at(least)}
    ended, length = False, max(step, 2 * least)
    while not ended and max(tried) < longest:
        length = min(length, longest)
        tried[length] = loss_at(length)
        before = list(tried.values())[:-2]
        ended = bool(before) and relative_gain(min(before), min(tried.values())) < THRESHOLD
        length *= 2
    while True:
        shortest = _shortest(tried)
        below = max((one for one in tried if one < shortest), default=shortest)
        middle = (below + shortest) // 2 // step * step
        if not below < middle < shortest:
            return Search(shortest, dict(sorted(tried.items())), ended)
        tried[middle] = loss_at(middle)


def relative_gain(before_nats: float, after_nats: float) -> float:
    """The share of the perplexity that more context takes away."""
    return 1 - perplexity(after_nats - before_nats)


def _shortest(tried: dict[int, float]) -> int:
    """The shortest length that no longer one beats by the threshold."""
    return min(
        length
        for length, loss in tried.items()
        if all(relative_gain(loss, other) < THRESHOLD for longer, other in tried.items() if longer > length)
    )
