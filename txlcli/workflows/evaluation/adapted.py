"""Scores a text with models that adapt to it: a continuous cache, and dynamic evaluation.

Their parameters are searched for on the validation split.
"""

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

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
from txlcli.runs.history import MODEL_ALONE
from txlcli.workflows.evaluation.rows import EvalRow, make_row, score_with_memory
from txlcli.workflows.evaluation.scoring import Scoring
from txlcli.workflows.evaluation.search import with_temperature

RMS_SEGMENTS = 100  # of train, to estimate the RMS of the gradients
TITLE = "dynamic evaluation"
CACHE_TOKENS = 50_000
"""Fewest tokens of valid to search with a cache."""
CACHE_FILLS = 2
"""How often the tokens of one lane fill the cache in a search, at least."""
DYNAMIC_TOKENS = 10_000
"""Fewest tokens of the search for dynamic evaluation."""
DYNAMIC_STEPS = 50
"""Fewest steps of it; with fewer, the decay has no effect."""
LEARNING_RATES = (0.0, 3e-5, 1e-4, 3e-4, 1e-3)
"""Candidates that are all tried."""
LARGER_LEARNING_RATES = (3e-3, 1e-2, 3e-2, 1e-1)
"""Candidates tried one by one for as long as each improves on the last."""
FIRST_DECAY = 1e-3  # while the learning rate is searched


def adapted_rows(scoring: Scoring) -> Iterator[EvalRow]:
    """Yield the rows of the model alone, with the cache, and with dynamic evaluation."""
    settings = scoring.settings
    options = scoring.options
    cache = options.cache or 0
    lane_len = Lanes.of(len(scoring.text.targets), settings).length
    if cache > lane_len:
        raise UsageError(
            f"`cache` {cache} exceeds the {lane_len:,} tokens of a lane; use at most that, or a smaller `batch_size`"
        )
    # Missing splits must be reported before anything is scored.
    for_cache = scoring.on_valid(max(CACHE_TOKENS, CACHE_FILLS * cache * settings.batch_size))
    for_dynamic = scoring.on_valid(max(DYNAMIC_TOKENS, DYNAMIC_STEPS * settings.seg_len * settings.batch_size))
    rms: list[Tensor] = []
    if options.dynamic:
        train = scoring.opened.as_run.store(scoring.workspace.data_dir).ids("train")
        rms = gradient_rms(scoring.opened.model, train, settings, RMS_SEGMENTS)
    score_model = partial(score_with_memory, mem_len=settings.mem_len)
    tempered = with_temperature(scoring, score_model)
    yield replace(score_model(tempered), method=MODEL_ALONE)
    if cache:
        yield _with_cache(tempered, replace(for_cache, temperature=tempered.temperature), cache)
    if options.dynamic:
        yield from _dynamic(scoring, for_dynamic, rms)


def _with_cache(scoring: Scoring, valid: Scoring, size: int) -> EvalRow:
    """Return the row with a cache of `size` tokens, mixed as is best on valid."""
    thetas = theta_candidates(scoring.opened.model, valid.text.inputs, scoring.settings)
    with_cache = partial(score_with_cache, size=size)
    on_valid, cached = valid.score(partial(with_cache, thetas=thetas), "cache, on valid")
    theta, share = search_cache(on_valid.losses_nats, cached, thetas)
    scores, cached = scoring.score(partial(with_cache, thetas=[theta]), "cache")
    losses = mixed_losses(scores.losses_nats, cached[0], share)
    return make_row(
        scoring,
        replace(scores, losses_nats=losses),
        next_step="leave out `cache`",
        method=f"cache {size:,}",
        adaptation={"theta": theta, "lambda": share, "searched_on": len(valid.text.targets)},
    )


def _dynamic(scoring: Scoring, valid: Scoring, rms: Sequence[Tensor]) -> Iterator[EvalRow]:
    """Yield the row of dynamic evaluation, and one with a temperature in addition, if one is asked for."""
    plain = replace(valid, temperature=1.0)

    def loss_on_valid(parameters: DynamicSettings) -> float:
        scores = plain.score(partial(score_dynamic, dynamic=parameters, rms=rms), f"{TITLE}, on valid")
        return scores.total_nats

    best = best_dynamic_settings(loss_on_valid)

    def score_with_best(scoring: Scoring) -> EvalRow:
        scores = scoring.score(partial(score_dynamic, dynamic=best, rms=rms), TITLE)
        adaptation = {"lr": best.lr, "decay": best.decay, "searched_on": len(valid.text.targets)}
        method = "dynamic"
        if scoring.temperature != 1:
            method += ", temperature"
            adaptation["temperature"] = scoring.temperature
        return make_row(scoring, scores, next_step="leave out `dynamic`", method=method, adaptation=adaptation)

    if not best.lr:
        scoring.reporter.say("every learning rate tried increases the loss on valid: dynamic evaluation is not applied")
    yield score_with_best(replace(scoring, temperature=1.0))
    tempered = with_temperature(scoring, score_with_best, valid)
    if tempered.temperature != 1:
        yield score_with_best(tempered)


def best_dynamic_settings(loss_on_valid: Callable[[DynamicSettings], float]) -> DynamicSettings:
    """Search for the learning rate with the lowest loss on the validation split, then for the decay."""

    @functools.cache
    def loss(parameters: DynamicSettings) -> float:
        nats = loss_on_valid(parameters)
        return math.inf if math.isnan(nats) else nats  # large steps may make the loss NaN

    tried = [DynamicSettings(lr=lr, decay=FIRST_DECAY) for lr in LEARNING_RATES]
    best = min(tried, key=loss)
    for lr in LARGER_LEARNING_RATES:
        if best != tried[-1]:
            break
        tried.append(DynamicSettings(lr=lr, decay=FIRST_DECAY))
        best = min(best, tried[-1], key=loss)
    if not best.lr:
        return best
    decays = [DynamicSettings(lr=best.lr, decay=decay) for decay in DECAYS]
    return min(decays, key=loss)
