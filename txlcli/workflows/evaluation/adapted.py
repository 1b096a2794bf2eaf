"""Scores a text with a continuous cache or dynamic evaluation; their parameters are searched on the validation split.

Both are then applied to the text that is scored, which may be another one.
"""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.adaptation import (
    DECAYS,
    LARGER_LEARNING_RATES,
    LEARNING_RATES,
    SHARES,
    CacheSettings,
    DynamicSettings,
    gradient_rms,
    head_segments,
    mixed_losses,
    score_dynamic,
    score_with_cache,
    search_cache,
    theta_candidates,
)
from txlcli.core.reading.scoring import Lanes, Scores, Tokens
from txlcli.errors import UsageError
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.memory import over_memory
from txlcli.workflows.evaluation.options import AdaptationSearch, EvalOptions
from txlcli.workflows.evaluation.record import NO_SLOWDOWN, Row, make_row
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.reporter import Reporter

RMS_SEGMENTS = 100  # of train, to estimate the RMS of the gradients
FIRST_DECAY = 1e-3  # while the learning rate is searched


def adapted_rows(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    options: EvalOptions,
    data_dir: Path,
    reporter: Reporter,
) -> Iterator[tuple[Row, NDArray[np.float32]]]:
    """Yield the rows of the model alone, with the cache, and with dynamic evaluation; each with the token losses, (T,).

    Raises:
        UsageError: the cache is longer than a lane of the text.
        StoreError: there is no validation split to search on, or no train split for the RMS of the gradients.
    """
    search, cache = options.search, options.cache
    lane_len = Lanes.of(len(text.targets), settings).length
    if cache is not None and cache > lane_len:
        raise UsageError(
            f"--cache {cache} exceeds the {lane_len:,} tokens of a lane; give at most that, or a smaller --batch-size"
        )
    # Missing splits must be reported before anything is scored.
    valid = functools.partial(texts.validation_text, opened, data_dir=data_dir)
    methods: list[Callable[[], tuple[Row, NDArray[np.float32]]]] = []
    if cache is not None:
        for_cache = valid(max(search.cache_tokens, search.cache_fills * cache * settings.batch_size))
        methods.append(functools.partial(_with_cache, opened, text, settings, for_cache, cache, reporter))
    if options.dynamic:
        for_dynamic = valid(max(search.dynamic_tokens, search.dynamic_steps * settings.seg_len * settings.batch_size))
        train = opened.store(data_dir).ids("train")
        methods.append(functools.partial(_dynamic, opened, text, settings, for_dynamic, train, search, reporter))
    if text.split is None:
        texts.warn_if_trained_on(opened, opened.store(data_dir), "valid", reporter)
    if text.split == "valid":
        reporter.say("valid is used both for the search and for the result, which is therefore too optimistic")
    for row, losses in over_memory(opened, text, settings, [settings.mem_len], reporter, timed=False):
        yield {**row, "method": "model", "adaptation": {}}, losses
    for score_with_method in methods:
        yield score_with_method()


def _make_row(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    scores: Scores,
    method: str,
    adaptation: dict[str, Any],
    *,
    option: str,
) -> tuple[Row, NDArray[np.float32]]:
    row = make_row(opened, text, settings, scores, next_step=f"leave out {option}")
    return {**row, **NO_SLOWDOWN, "method": method, "adaptation": adaptation}, scores.losses_nats


def _with_cache(
    opened: OpenRun, text: ScoredText, settings: EvalSettings, valid: ScoredText, size: int, reporter: Reporter
) -> tuple[Row, NDArray[np.float32]]:
    lane_len = Lanes.of(len(valid.targets), settings).length
    if lane_len < size:
        reporter.say(
            f"a lane of valid has {lane_len:,} tokens, fewer than the cache: theta and lambda are searched with a "
            "cache that is not full"
        )

    def score(scored: ScoredText, thetas: list[float], description: str) -> tuple[Scores, NDArray[np.float32]]:
        with reporter.progress(description, total=len(scored.targets), unit="tokens") as bar:
            return score_with_cache(
                opened.model,
                scored.inputs,
                scored.targets,
                settings,
                size=size,
                thetas=thetas,
                precision=opened.precision,
                on_tokens=bar.reach,
            )

    thetas = theta_candidates(opened.model, valid.inputs, settings)
    on_valid, cached = score(valid, thetas, "cache, on valid")
    best: CacheSettings = search_cache(on_valid.losses_nats, cached, thetas=thetas, size=size)
    scores, cached = score(text, [best.theta], "cache")
    mixed = dataclasses.replace(scores, losses_nats=mixed_losses(scores.losses_nats, cached[0], best.share))
    if best.share == SHARES[-1]:
        reporter.say(f"lambda = {best.share:g} is the largest value tried: the cache predicts most of this text")
    parameters = {"theta": best.theta, "lambda": best.share, "searched_on": len(valid.targets)}
    return _make_row(opened, text, settings, mixed, f"cache {size:,}", parameters, option="--cache")


def _dynamic(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    valid: ScoredText,
    train: Tokens,
    search: AdaptationSearch,
    reporter: Reporter,
) -> tuple[Row, NDArray[np.float32]]:
    rms = gradient_rms(opened.model, head_segments(train, settings, RMS_SEGMENTS, opened.model.device), settings)

    def score(scored: ScoredText, parameters: DynamicSettings, description: str) -> Scores:
        with reporter.progress(description, total=len(scored.targets), unit="tokens") as bar:
            return score_dynamic(
                opened.model,
                scored.inputs,
                scored.targets,
                settings,
                parameters,
                rms,
                precision=opened.precision,
                on_tokens=bar.reach,
            )

    @functools.cache
    def loss_on_valid(parameters: DynamicSettings) -> float:
        nats = score(valid, parameters, "dynamic, on valid").total_nats
        return math.inf if math.isnan(nats) else nats  # large steps may make the loss NaN

    best = best_dynamic_settings(loss_on_valid, search, reporter)
    scores = score(text, best, "dynamic evaluation")
    adaptation = {"lr": best.lr, "decay": best.decay, "searched_on": len(valid.targets)}
    return _make_row(opened, text, settings, scores, "dynamic", adaptation, option="--dynamic")


def best_dynamic_settings(
    loss_on_valid: Callable[[DynamicSettings], float], search: AdaptationSearch, reporter: Reporter
) -> DynamicSettings:
    """Search for the learning rate with the lowest loss on the validation split, then for the decay."""
    first = LEARNING_RATES if search.learning_rates is None else search.learning_rates
    larger = LARGER_LEARNING_RATES if search.larger_learning_rates is None else search.larger_learning_rates
    tried = [DynamicSettings(lr=lr, decay=FIRST_DECAY) for lr in first]
    best = min(tried, key=loss_on_valid)
    for lr in larger:
        if best is not tried[-1]:
            break
        tried.append(dataclasses.replace(best, lr=lr))
        best = min(best, tried[-1], key=loss_on_valid)
    if best.lr == tried[-1].lr:
        reporter.say(f"lr = {best.lr:g} is the largest value tried: an even larger one might be better")
    if best.lr > 0:
        best = min((dataclasses.replace(best, decay=decay) for decay in DECAYS), key=loss_on_valid)
    else:
        reporter.say("every learning rate tried increases the loss on valid: dynamic evaluation is not applied")
    return best
