"""Scores a text for `txl eval --cache` and `--dynamic`: parameters searched on valid, applied to what was asked for."""

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.errors import UsageError
from txlcli.workflows.evaluation import memory, texts
from txlcli.workflows.evaluation.memory import Row
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.config.settings import EvalSettings
    from txlcli.core.measures.adaptation import CacheSettings, DynamicSettings
    from txlcli.core.reading.scoring import Scores
    from txlcli.core.training.segments import Tokens
    from txlcli.runs.loading import OpenRun

CACHE_SEARCH_TOKENS = 50_000  # of valid, at least; more move the parameters little
CACHE_SEARCH_FILLS = 2  # times that a lane of it fills the cache
DYNAMIC_SEARCH_TOKENS = 10_000  # likewise
DYNAMIC_SEARCH_STEPS = 50  # with fewer, a decay has nothing to do
RMS_SEGMENTS = 100  # of train, for the usual size of gradients
FIRST_DECAY = 1e-3  # while the learning rate is searched


def rows(
    opened: "OpenRun",
    source: ScoredText,
    how: "EvalSettings",
    data_dir: Path,
    *,
    cache: int | None,
    dynamic: bool,
    shown: bool,
) -> "Iterator[tuple[Row, NDArray[np.float32]]]":
    """The model alone, then with what was asked for; and the loss of each token, (T,).

    Raises:
        UsageError: the cache is longer than a lane of the text.
        StoreError: there is no valid split to search on, or no train split for the usual size of gradients.
    """
    from txlcli.core.reading.scoring import Lanes

    lane_len = Lanes.of(len(source.targets), how).length
    if cache is not None and cache > lane_len:
        raise UsageError(
            f"--cache {cache} is longer than the {lane_len:,} tokens of a lane; take less, or a smaller --batch-size"
        )
    # What is searched on may be missing, so before anything is scored.
    valid = functools.partial(texts.to_search_on, opened, data_dir=data_dir)
    adapted = []
    if cache is not None:
        for_cache = valid(max(CACHE_SEARCH_TOKENS, CACHE_SEARCH_FILLS * cache * how.batch_size))
        adapted.append(functools.partial(_with_cache, opened, source, how, for_cache, cache))
    if dynamic:
        for_dynamic = valid(max(DYNAMIC_SEARCH_TOKENS, DYNAMIC_SEARCH_STEPS * how.seg_len * how.batch_size))
        train = opened.store(data_dir).ids("train")
        adapted.append(functools.partial(_dynamic, opened, source, how, for_dynamic, train))
    if source.split is None:
        texts.tell_learned(opened, opened.store(data_dir), "valid")
    if source.split == "valid":
        console.say("valid is both searched and scored: what is found suits it better than any other text")
    for plain, losses in memory.over_memory(opened, source, how, [how.mem_len], shown=shown, timed=False):
        yield {**plain, "method": "model", "adaptation": {}}, losses
    for scored in adapted:
        yield scored(shown=shown)


def _row(
    opened: "OpenRun",
    source: ScoredText,
    how: "EvalSettings",
    scores: "Scores",
    method: str,
    adaptation: dict[str, Any],
    *,
    option: str,
) -> "tuple[Row, NDArray[np.float32]]":
    row = memory.row(opened, source, how, scores, instead=f"leave out {option}")
    return {**row, **memory.NO_SLOWDOWN, "method": method, "adaptation": adaptation}, scores.losses_nats


def _with_cache(
    opened: "OpenRun", source: ScoredText, how: "EvalSettings", valid: ScoredText, size: int, *, shown: bool
) -> "tuple[Row, NDArray[np.float32]]":
    from txlcli.core.measures.adaptation import SHARES, mixed_losses, score_with_cache, search_cache, theta_candidates
    from txlcli.core.reading.scoring import Lanes

    lane_len = Lanes.of(len(valid.targets), how).length
    if lane_len < size:
        console.say(f"a lane of valid has {lane_len:,} tokens, so that theta and lambda are those of a cache that long")

    def read(text: ScoredText, thetas: list[float], what: str) -> "tuple[Scores, NDArray[np.float32]]":
        with console.progress(what, total=len(text.targets), unit="tokens", shown=shown) as bar:
            return score_with_cache(
                opened.model,
                text.inputs,
                text.targets,
                how,
                size=size,
                thetas=thetas,
                precision=opened.precision,
                on_tokens=bar.reach,
            )

    thetas = theta_candidates(opened.model, valid.inputs, how)
    on_valid, cached = read(valid, thetas, "cache, on valid")
    best: CacheSettings = search_cache(on_valid.losses_nats, cached, thetas=thetas, size=size)
    scores, cached = read(source, [best.theta], "cache")
    mixed = dataclasses.replace(scores, losses_nats=mixed_losses(scores.losses_nats, cached[0], best.share))
    if best.share == SHARES[-1]:
        console.say(f"lambda = {best.share:g} is the largest that was tried: the model itself says little of this text")
    parameters = {"theta": best.theta, "lambda": best.share, "searched_on": len(valid.targets)}
    return _row(opened, source, how, mixed, f"cache {size:,}", parameters, option="--cache")


def _dynamic(
    opened: "OpenRun", source: ScoredText, how: "EvalSettings", valid: ScoredText, train: "Tokens", *, shown: bool
) -> "tuple[Row, NDArray[np.float32]]":
    from txlcli.core.measures.adaptation import gradient_rms, head_segments, score_dynamic

    rms = gradient_rms(opened.model, head_segments(train, how, RMS_SEGMENTS, opened.model.device), how)

    def read(text: ScoredText, settings: "DynamicSettings", what: str) -> "Scores":
        with console.progress(what, total=len(text.targets), unit="tokens", shown=shown) as bar:
            return score_dynamic(
                opened.model,
                text.inputs,
                text.targets,
                how,
                settings,
                rms,
                precision=opened.precision,
                on_tokens=bar.reach,
            )

    @functools.cache
    def loss_on_valid(settings: "DynamicSettings") -> float:
        nats = read(valid, settings, "dynamic, on valid").total_nats
        return math.inf if math.isnan(nats) else nats  # steps may be so long that no number is left

    best = _best_steps(loss_on_valid)
    scores = read(source, best, "dynamic evaluation")
    parameters = {"lr": best.lr, "decay": best.decay, "searched_on": len(valid.targets)}
    return _row(opened, source, how, scores, "dynamic", parameters, option="--dynamic")


def _best_steps(loss_on_valid: "Callable[[DynamicSettings], float]") -> "DynamicSettings":
    """The steps that valid gains most by: first their size, then how far each is taken back."""
    from txlcli.core.measures.adaptation import DECAYS, LARGER_LEARNING_RATES, LEARNING_RATES, DynamicSettings

    tried = [DynamicSettings(lr=lr, decay=FIRST_DECAY) for lr in LEARNING_RATES]
    best = min(tried, key=loss_on_valid)
    for lr in LARGER_LEARNING_RATES:
        if best is not tried[-1]:
            break
        tried.append(dataclasses.replace(best, lr=lr))
        best = min(best, tried[-1], key=loss_on_valid)
    if best.lr == tried[-1].lr:
        console.say(f"lr = {best.lr:g} is the largest that was tried: the model has much to learn from this text")
    if best.lr > 0:
        best = min((dataclasses.replace(best, decay=decay) for decay in DECAYS), key=loss_on_valid)
    else:
        console.say(
            "every size of step that was tried makes valid worse: dynamic evaluation leaves this model as it is"
        )
    return best
