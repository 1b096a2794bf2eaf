"""Searches on the validation split for what another text is scored with.

Temperature, memory length, window length, and the parameters of a continuous cache and of dynamic evaluation.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.adaptation import (
    DECAYS,
    DynamicSettings,
    gradient_rms,
    mixed_losses,
    score_dynamic,
    score_with_cache,
    search_cache,
    theta_candidates,
)
from txlcli.core.reading.scoring import Lanes
from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.workflows.evaluation.options import AUTO, LENGTH_THRESHOLD, EvalOptions
from txlcli.workflows.evaluation.rows import EvalRow, Score, make_row, with_memory
from txlcli.workflows.evaluation.texts import Scoring

STEP = 0.05
COLDEST, HOTTEST = -10, 20
"""Limits of the temperature, in steps from 1."""
SEARCH_STEPS = 16
"""The resolution of the search for a length is the trained length divided by this."""
RMS_SEGMENTS = 100  # of train, to estimate the RMS of the gradients
TITLE = "dynamic evaluation"
CACHE_TOKENS, CACHE_FILLS = 50_000, 2
"""Fewest tokens of valid to search with a cache, and how often the tokens of one lane fill it, at least."""
DYNAMIC_TOKENS, DYNAMIC_STEPS = 10_000, 50
"""Fewest tokens and steps of the search for dynamic evaluation; with fewer steps, the decay has no effect."""
LEARNING_RATES = (0.0, 3e-5, 1e-4, 3e-4, 1e-3)
"""Candidates that are all tried."""
LARGER_LEARNING_RATES = (3e-3, 1e-2, 3e-2, 1e-1)
"""Candidates tried one by one for as long as each improves on the last."""
FIRST_DECAY = 1e-3  # while the learning rate is searched


def find_temperature(loss_at: Callable[[float], float]) -> float:
    """Return the temperature with the lowest loss: steps from 1 as long as it falls, then a parabola through three.

    The loss is convex in the inverse of the temperature, so it has one minimum.
    """
    losses = {step: loss_at(1 + step * STEP) for step in (-1, 0, 1)}
    while (best := min(losses, key=losses.__getitem__)) in (min(losses), max(losses)):
        step = best + (1 if best == max(losses) else -1)
        if not COLDEST <= step <= HOTTEST:
            return 1 + best * STEP
        losses[step] = loss_at(1 + step * STEP)
    left, middle, right = (losses[best + offset] for offset in (-1, 0, 1))
    curvature = left - 2 * middle + right
    vertex = (left - right) / (2 * curvature) if curvature > 0 else 0.0
    return round(1 + (best + vertex) * STEP, 4)


def with_temperature(scoring: Scoring, score: Score, valid: Scoring | None = None) -> Scoring:
    """Return the scoring with a number as its temperature; `auto` is chosen on valid, which `score` scores."""
    if scoring.settings.temperature != AUTO:
        return scoring
    on_valid = valid or scoring.on_valid()
    temperature = find_temperature(lambda number: score(on_valid.changed(temperature=number)).loss_nats)
    is_limit = temperature in (1 + COLDEST * STEP, 1 + HOTTEST * STEP)
    remark = ", the limit of the search: the best one may lie beyond" if is_limit else ""
    scoring.reporter.say(
        f"temperature {temperature:g}, chosen on {len(on_valid.text.targets):,} tokens of valid{remark}"
    )
    return scoring.changed(temperature=temperature)


@dataclass(frozen=True)
class LengthSearch:
    """Search for the effective context length (section 4.3), beyond which more context gains almost nothing."""

    length: int
    """Shortest length such that no longer one that was tried lowers the perplexity by the threshold."""
    tried: dict[int, float]
    """Mean loss in nats by length, in rising order."""
    ended: bool
    """True if the gains ended; False if the longest possible length still gains."""
    option: Literal["mem_len", "attn_len"] = "mem_len"
    """Option whose length is searched for."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        return {
            "option": "--" + self.option.replace("_", "-"),
            "split": "valid",
            "threshold": LENGTH_THRESHOLD,
            "found": self.length,
            "gains_ended": self.ended,
            "tried": [{"length": length, "loss_nats": loss} for length, loss in self.tried.items()],
        }


def find_length(loss_at: Callable[[int], float], *, least: int, step: int, longest: int) -> LengthSearch:
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
        ended = bool(before) and relative_gain(min(before), min(tried.values())) < LENGTH_THRESHOLD
        length *= 2
    while True:
        shortest = _shortest(tried)
        below = max((length for length in tried if length < shortest), default=shortest)
        middle = (below + shortest) // 2 // step * step
        if not below < middle < shortest:
            return LengthSearch(shortest, dict(sorted(tried.items())), ended)
        tried[middle] = loss_at(middle)


def relative_gain(before_nats: float, after_nats: float) -> float:
    """Return the relative reduction of perplexity."""
    return 1 - metrics.perplexity(after_nats - before_nats)


def _shortest(tried: dict[int, float]) -> int:
    """Return the shortest length that no longer one improves on by the threshold."""
    return min(
        length
        for length, loss in tried.items()
        if all(relative_gain(loss, other) < LENGTH_THRESHOLD for longer, other in tried.items() if longer > length)
    )


def search_length(scoring: Scoring, options: EvalOptions, score_at: Callable[[int], Score]) -> LengthSearch:
    """Search for the memory length, or the window length, on the validation split."""
    run, reporter, stride = scoring.opened.run, scoring.reporter, options.stride or 1
    train, option, on_valid = run.settings.train, options.searched or "mem_len", scoring.on_valid()
    longest = tokens = len(on_valid.text.targets)
    if option == "mem_len" and train.mem_len == 0:
        raise UsageError(f"{run.directory} was trained without memory; give `attn_len` auto instead of `mem_len`")
    if option == "attn_len":
        longest = min(tokens, run.settings.model.longest_window or tokens)
    if stride > longest:
        raise UsageError(
            f"`stride` {stride} exceeds the longest window that can be tried, {longest}; give at most that"
        )
    if on_valid.settings.temperature == AUTO:
        on_valid = on_valid.changed(temperature=1.0)
    # Windows are tried in steps of at least a stride, since the shortest one is a step long and predicts a stride.
    step = max(stride, (train.mem_len if option == "mem_len" else train.seg_len) // SEARCH_STEPS)
    reporter.say(
        f"searching for the shortest length beyond which perplexity falls by less than "
        f"{LENGTH_THRESHOLD:.1%}, on {tokens:,} tokens of valid, in steps of {step}"
    )

    def loss_at(length: int) -> float:
        row = score_at(length)(on_valid)
        ppl, bits = metrics.format_measure(row.ppl), metrics.bits(row.loss_nats)
        reporter.say(f"`{option}` {length}: valid perplexity {ppl}, {bits:.4f} bits")
        return row.loss_nats

    # If every query sees M keys, M = 0 is not comparable: queries then see the 1 to L keys of their segment.
    least = 0 if option == "mem_len" and on_valid.settings.same_length == "off" else step
    return replace(find_length(loss_at, least=least, step=step, longest=longest), option=option)


def adapted_rows(scoring: Scoring, options: EvalOptions) -> Iterator[EvalRow]:
    """Yield the rows of the model alone, with the cache, and with dynamic evaluation."""
    settings, cache = scoring.settings, options.cache or 0
    lane_len = Lanes.of(len(scoring.text.targets), settings).length
    if cache > lane_len:
        raise UsageError(
            f"`cache` {cache} exceeds the {lane_len:,} tokens of a lane; give at most that, or a smaller `batch_size`"
        )

    # Missing splits must be reported before anything is scored.
    for_cache = scoring.on_valid(cache_positions(settings, cache))
    for_dynamic = scoring.on_valid(dynamic_positions(settings))
    rms: list[Tensor] = []
    if options.dynamic:
        train = scoring.opened.store(scoring.workspace.data_dir).ids("train")
        rms = gradient_rms(scoring.opened.model, train, settings, RMS_SEGMENTS)
    score = partial(with_memory, mem_len=settings.mem_len)
    tempered = with_temperature(scoring, score)
    yield replace(score(tempered), method="model")
    if cache:
        yield _with_cache(tempered, for_cache.changed(temperature=tempered.settings.temperature), cache)
    if options.dynamic:
        yield from _dynamic(scoring, for_dynamic, rms)


def cache_positions(settings: EvalSettings, size: int) -> int:
    """Return how many positions of the validation split the search with a cache of that size scores."""
    return max(CACHE_TOKENS, CACHE_FILLS * size * settings.batch_size)


def dynamic_positions(settings: EvalSettings) -> int:
    """Return how many positions of the validation split the search for dynamic evaluation scores."""
    return max(DYNAMIC_TOKENS, DYNAMIC_STEPS * settings.seg_len * settings.batch_size)


def _with_cache(scoring: Scoring, valid: Scoring, size: int) -> EvalRow:
    thetas = theta_candidates(scoring.opened.model, valid.text.inputs, scoring.settings)
    with_cache = partial(score_with_cache, size=size)
    on_valid, cached = valid.score(partial(with_cache, thetas=thetas), "cache, on valid")
    theta, share = search_cache(on_valid.losses_nats, cached, thetas)
    scores, cached = scoring.score(partial(with_cache, thetas=[theta]), "cache")
    mixed = replace(scores, losses_nats=mixed_losses(scores.losses_nats, cached[0], share))
    row = make_row(scoring, mixed, next_step="leave out `cache`")
    parameters = {"theta": theta, "lambda": share, "searched_on": len(valid.text.targets)}
    return replace(row, method=f"cache {size:,}", adaptation=parameters)


def _dynamic(scoring: Scoring, valid: Scoring, rms: Sequence[Tensor]) -> Iterator[EvalRow]:
    """Yield the row of dynamic evaluation, and one with a temperature in addition, if one is asked for."""
    plain = valid.changed(temperature=1.0)

    def loss_on_valid(parameters: DynamicSettings) -> float:
        return plain.score(partial(score_dynamic, dynamic=parameters, rms=rms), f"{TITLE}, on valid").total_nats

    def score(scoring: Scoring) -> EvalRow:
        scores = scoring.score(partial(score_dynamic, dynamic=best, rms=rms), TITLE)
        return make_row(scoring, scores, next_step="leave out `dynamic`")

    best = best_dynamic_settings(loss_on_valid)
    if not best.lr:
        scoring.reporter.say("every learning rate tried increases the loss on valid: dynamic evaluation is not applied")
    parameters = {"lr": best.lr, "decay": best.decay, "searched_on": len(valid.text.targets)}
    yield replace(score(scoring.changed(temperature=1.0)), method="dynamic", adaptation=parameters)
    tempered = with_temperature(scoring, score, valid)
    if tempered.settings.temperature != 1:
        row = score(tempered)
        yield replace(row, method="dynamic, temperature", adaptation=parameters | {"temperature": row.temperature})


def best_dynamic_settings(loss_on_valid: Callable[[DynamicSettings], float]) -> DynamicSettings:
    """Search for the learning rate with the lowest loss on the validation split, then for the decay."""

    @functools.cache
    def loss(parameters: DynamicSettings) -> float:
        nats = loss_on_valid(parameters)
        return math.inf if math.isnan(nats) else nats  # large steps may make the loss NaN

    tried = [DynamicSettings(lr=lr, decay=FIRST_DECAY) for lr in LEARNING_RATES]
    best = min(tried, key=loss)
    for lr in LARGER_LEARNING_RATES:
        if best is not tried[-1]:
            break
        tried.append(replace(best, lr=lr))
        best = min(best, tried[-1], key=loss)
    return min((replace(best, decay=decay) for decay in DECAYS), key=loss) if best.lr else best
