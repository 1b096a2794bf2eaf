"""Searches on the validation split for the temperature and the length that another text is scored with."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.system.command_lines import flag
from txlcli.workflows.evaluation.options import LENGTH_THRESHOLD, LengthOption
from txlcli.workflows.evaluation.rows import EvalRow, score_row
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.settings import RowSetting

STEP = 0.05
COLDEST = -10
HOTTEST = 20
"""Limits of the temperature, in steps from 1."""
SEARCH_STEPS = 16
"""The resolution of the search for a length is the trained length divided by this."""


def find_temperature(loss_at: Callable[[float], float]) -> float:
    """Return the temperature with the lowest loss: steps from 1 as long as it falls, then a parabola through three.

    The loss is convex in the inverse of the temperature, so it has one minimum.
    """
    loss_of_step = {step: loss_at(1 + step * STEP) for step in (-1, 0, 1)}
    best = min(loss_of_step, key=loss_of_step.__getitem__)
    while best in (min(loss_of_step), max(loss_of_step)):
        is_warmest = best == max(loss_of_step)
        step = best + 1 if is_warmest else best - 1
        if not COLDEST <= step <= HOTTEST:
            return 1 + best * STEP
        loss_of_step[step] = loss_at(1 + step * STEP)
        best = min(loss_of_step, key=loss_of_step.__getitem__)
    colder = loss_of_step[best - 1]
    warmer = loss_of_step[best + 1]
    curvature = colder - 2 * loss_of_step[best] + warmer
    vertex = 0.0
    if curvature > 0:
        vertex = (colder - warmer) / (2 * curvature)
    return round(1 + (best + vertex) * STEP, 4)


def with_temperature(
    scoring: Scoring, score_text: Callable[[Scoring], EvalRow], valid: Scoring | None = None
) -> Scoring:
    """Return the scoring; a temperature "auto" is chosen on valid, which `score_text` scores."""
    if scoring.settings.temperature != "auto":
        return scoring
    on_valid = valid or scoring.on_valid()

    def loss_at(temperature: float) -> float:
        return score_text(replace(on_valid, temperature=temperature)).loss_nats

    temperature = find_temperature(loss_at)
    remark = ""
    if temperature in (1 + COLDEST * STEP, 1 + HOTTEST * STEP):
        remark = ", the limit of the search: the best one may lie beyond"
    scoring.reporter.say(
        f"temperature {temperature:g}, chosen on {len(on_valid.text.targets):,} tokens of valid{remark}"
    )
    return replace(scoring, temperature=temperature)


@dataclass(frozen=True)
class LengthSearch:
    """Search for the effective context length (section 4.3), beyond which more context gains almost nothing."""

    length: int
    """Shortest length such that no longer one that was tried lowers the perplexity by the threshold."""
    tried: dict[int, float]
    """Mean loss in nats by length, in rising order."""
    ended: bool
    """True if the gains ended; False if the longest possible length still gains."""
    option: LengthOption = "mem_len"
    """Option whose length is searched for."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        return {
            "option": flag(self.option),
            "split": "valid",
            "threshold": LENGTH_THRESHOLD,
            "found": self.length,
            "gains_ended": self.ended,
            "tried": [{"length": length, "loss_nats": loss} for length, loss in self.tried.items()],
        }


def find_length(
    loss_at: Callable[[int], float], *, least: int, step: int, longest: int, option: LengthOption = "mem_len"
) -> LengthSearch:
    """Double the length until two doublings together gain too little, then bisect the interval in which gains end.

    `loss_at` returns the mean loss in nats; it is called once per length. `step` is the granularity. The second length
    is twice `least`, or `step` if that is longer.
    """
    tried = {least: loss_at(least)}
    ended = False
    length = max(step, 2 * least)
    while not ended and max(tried) < longest:
        length = min(length, longest)
        tried[length] = loss_at(length)
        losses_nats = list(tried.values())
        if len(losses_nats) > 2:
            gain_of_two = relative_gain(min(losses_nats[:-2]), min(losses_nats))
            ended = gain_of_two < LENGTH_THRESHOLD
        length *= 2
    while True:
        shortest = _shortest(tried)
        below = max((length for length in tried if length < shortest), default=shortest)
        middle = (below + shortest) // 2 // step * step
        if not below < middle < shortest:
            ended = ended or shortest < max(tried)
            return LengthSearch(shortest, dict(sorted(tried.items())), ended, option)
        tried[middle] = loss_at(middle)


def relative_gain(before_nats: float, after_nats: float) -> float:
    """Return the relative reduction of perplexity."""
    return 1 - metrics.perplexity(after_nats - before_nats)


def _shortest(tried: dict[int, float]) -> int:
    """Return the shortest length that no longer one improves on by the threshold."""
    for length in sorted(tried)[:-1]:
        lowest_of_longer = min(loss_nats for other, loss_nats in tried.items() if other > length)
        if relative_gain(tried[length], lowest_of_longer) < LENGTH_THRESHOLD:
            return length
    return max(tried)


def search_length(scoring: Scoring, setting: RowSetting) -> LengthSearch:
    """Search for the memory length, or the window length, of a setting on the validation split."""
    opened = scoring.opened
    train = opened.settings.train
    stride = setting.stride
    on_valid = scoring.on_valid()
    tokens = len(on_valid.text.targets)
    option: LengthOption = "mem_len" if setting.attn_len is None else "attn_len"
    if option == "mem_len":
        if train.mem_len == 0:
            raise UsageError(f"{opened.subject} was trained without memory; give `attn_len` auto instead of `mem_len`")
        trained = train.mem_len
        longest = tokens
    else:
        trained = train.seg_len
        longest = min(tokens, opened.settings.model.longest_window or tokens)
    if stride > longest:
        raise UsageError(f"`stride` {stride} exceeds the longest window that can be tried, {longest}; use at most that")
    # Windows are tried in steps of at least a stride, since the shortest one is a step long and predicts a stride.
    step = max(stride, trained // SEARCH_STEPS)
    scoring.reporter.say(
        f"searching for the shortest length beyond which perplexity falls by less than "
        f"{LENGTH_THRESHOLD:.1%}, on {tokens:,} tokens of valid, in steps of {step}"
    )

    def loss_at(length: int) -> float:
        row = score_row(on_valid, setting.at(length))
        ppl = metrics.format_measure(row.ppl)
        bits = metrics.bits(row.loss_nats)
        scoring.reporter.say(f"`{option}` {length}: valid perplexity {ppl}, {bits:.4f} bits")
        return row.loss_nats

    # If every query sees M keys, M = 0 is not comparable: queries then see the 1 to L keys of their segment.
    least = step
    if option == "mem_len" and on_valid.settings.same_length == "off":
        least = 0
    return find_length(loss_at, least=least, step=step, longest=longest, option=option)
