"""Search for the effective context length (section 4.3): the length beyond which more context gains almost nothing."""

from collections.abc import Callable
from dataclasses import dataclass

from txlcli.paper.metrics import perplexity

THRESHOLD = 0.001  # smallest relative gain of perplexity that counts


@dataclass(frozen=True)
class Search:
    """Result of a search."""

    length: int
    """Shortest length such that no longer one that was tried lowers the perplexity by the threshold."""
    tried: dict[int, float]
    """Mean loss in nats by length, in rising order."""
    ended: bool
    """True if the gains ended; False if the longest possible length still gains."""


def find(loss_at: Callable[[int], float], *, least: int, step: int, longest: int) -> Search:
    """Double the length until two doublings together gain too little, then bisect the interval in which gains end.

    `loss_at` returns the mean loss in nats; it is called once per length. `step` is the granularity, and the second
    length after `least`.
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
        below = max((length for length in tried if length < shortest), default=shortest)
        middle = (below + shortest) // 2 // step * step
        if not below < middle < shortest:
            return Search(shortest, dict(sorted(tried.items())), ended)
        tried[middle] = loss_at(middle)


def relative_gain(before_nats: float, after_nats: float) -> float:
    """Return the relative reduction of perplexity."""
    return 1 - perplexity(after_nats - before_nats)


def _shortest(tried: dict[int, float]) -> int:
    """Return the shortest length that no longer one improves on by the threshold."""
    return min(
        length
        for length, loss in tried.items()
        if all(relative_gain(loss, other) < THRESHOLD for longer, other in tried.items() if longer > length)
    )
