"""Scores a text with a continuous cache or dynamic evaluation; their parameters are searched on the validation split.

Both are then applied to the text that is scored, which may be another one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial

from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.adaptation import (
    DECAYS,
    DynamicSettings,
    gradient_rms,
    head_segments,
    mixed_losses,
    score_dynamic,
    score_with_cache,
    search_cache,
    theta_candidates,
)
from txlcli.core.reading.scoring import Lanes
from txlcli.errors import UsageError
from txlcli.workflows.evaluation.rows import EvalRow, make_row, with_memory
from txlcli.workflows.evaluation.search import choose_temperature, with_temperature
from txlcli.workflows.evaluation.texts import Scoring
from txlcli.workflows.options import AUTO, EvalOptions

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
    rms = _rms_of_train(scoring) if options.dynamic else []
    score = partial(with_memory, mem_len=settings.mem_len)
    tempered = with_temperature(scoring, score)
    yield dataclasses.replace(score(tempered), method="model")
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
    mixed = dataclasses.replace(scores, losses_nats=mixed_losses(scores.losses_nats, cached[0], share))
    row = make_row(scoring, mixed, next_step="leave out `cache`")
    parameters = {"theta": theta, "lambda": share, "searched_on": len(valid.text.targets)}
    return dataclasses.replace(row, method=f"cache {size:,}", adaptation=parameters)


def _dynamic(scoring: Scoring, valid: Scoring, rms: Sequence[Tensor]) -> Iterator[EvalRow]:
    """Yield the row of dynamic evaluation, and one with a temperature in addition, if one is asked for."""
    temperature, plain = scoring.settings.temperature, valid.changed(temperature=1.0)

    def loss_on_valid(parameters: DynamicSettings) -> float:
        return plain.score(partial(score_dynamic, dynamic=parameters, rms=rms), f"{TITLE}, on valid").total_nats

    best = best_dynamic_settings(loss_on_valid)
    if not best.lr:
        scoring.reporter.say("every learning rate tried increases the loss on valid: dynamic evaluation is not applied")
    score = partial(score_dynamic, dynamic=best, rms=rms)
    parameters = {"lr": best.lr, "decay": best.decay, "searched_on": len(valid.text.targets)}
    methods = {"dynamic": 1.0}
    if temperature == AUTO:
        temperature = choose_temperature(plain, lambda on_valid: on_valid.score(score, TITLE).total_nats)
    if temperature != 1:
        methods["dynamic, temperature"] = temperature
    for method, number in methods.items():
        at_number = scoring.changed(temperature=number)
        row = make_row(at_number, at_number.score(score, TITLE), next_step="leave out `dynamic`")
        own = {"temperature": number} if number != 1 else {}
        yield dataclasses.replace(row, method=method, adaptation=parameters | own)


def _rms_of_train(scoring: Scoring) -> list[Tensor]:
    """Return the root mean square of each gradient on the first segments of the training split."""
    model, settings = scoring.opened.model, scoring.settings
    train = scoring.opened.store(scoring.workspace.data_dir).ids("train")
    return gradient_rms(model, head_segments(train, settings, RMS_SEGMENTS, model.device), settings)


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
        tried.append(dataclasses.replace(best, lr=lr))
        best = min(best, tried[-1], key=loss)
    return min((dataclasses.replace(best, decay=decay) for decay in DECAYS), key=loss) if best.lr else best
