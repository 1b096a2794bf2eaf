"""Scores a text at each of several lengths: with memory, or without memory by sliding windows."""

import dataclasses
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.timing import time_evaluation, time_vanilla
from txlcli.core.reading.registry import sized_for
from txlcli.core.reading.scoring import Lanes, attention_span
from txlcli.core.reading.windows import windows_at_once
from txlcli.core.training.divided_scoring import score_in_processes, score_windows_in_processes
from txlcli.workflows.evaluation.out_of_memory import Reading, explained
from txlcli.workflows.evaluation.record import NO_SLOWDOWN, SLOWDOWN_WINDOWS, Row, make_row
from txlcli.workflows.evaluation.texts import Scoring

SHORT_LANE = 10
"""A lane shorter than this many memory lengths is short: the missing context at its start changes the result."""
RowAndLosses = tuple[Row, NDArray[np.float32]]
"""Row of the result, and the loss of each token, (T,)."""


def lanes(batch_size: int, tokens: int, mem_len: int) -> int:
    """Return how many lanes, `batch_size` at most, a text of so many tokens can be cut into without short ones."""
    return max(1, min(batch_size, tokens // (SHORT_LANE * max(mem_len, 1))))


def over_memory(scoring: Scoring, lengths: Sequence[int], *, timed: bool) -> Iterator[RowAndLosses]:
    """Yield the result for each memory length, with the slowdown if `timed`."""
    for length in lengths:
        with_length = scoring.with_settings(mem_len=length)
        title = "evaluation" if scoring.opened.model.has_recurrent_state else f"M = {length}"
        with explained(Reading(opened=scoring.opened, settings=_filled(with_length))):
            scores = scoring.score_by(score_in_processes, with_length.settings, world=scoring.world, title=title)
        with scoring.world.failing_together():
            row = make_row(with_length, scores)
        slowdown = scoring.world.from_rank_0(partial(_slowdown, with_length)) if timed else NO_SLOWDOWN
        yield {**row, **slowdown}, scores.losses_nats


def _filled(scoring: Scoring) -> EvalSettings:
    """Return the settings cut to what the text fills."""
    lanes = Lanes.of(len(scoring.text.targets), scoring.settings)
    settings = sized_for(scoring.opened.model, scoring.settings, lanes.length)
    return dataclasses.replace(settings, batch_size=lanes.number)


def _slowdown(scoring: Scoring) -> dict[str, Any]:
    """Time one lane with memory against the vanilla model, which recomputes a window of as many keys per prediction.

    No slowdown if the text is shorter than the memory, or if the model has fewer learned positions.
    """
    opened, settings, tokens = scoring.opened, scoring.settings, len(scoring.text.targets)
    one_lane = scoring.with_settings(batch_size=1, seg_len=min(settings.seg_len, tokens)).settings
    _, attn_len = attention_span(opened.model.settings, one_lane)
    longest = opened.run.settings.model.longest_window
    if settings.mem_len == 0 or settings.mem_len > tokens or (longest is not None and attn_len > longest):
        return NO_SLOWDOWN
    xl = time_evaluation(opened.model, one_lane, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    vanilla = time_vanilla(
        opened.model,
        attn_len,
        windows=1,
        max_distance=settings.max_distance,
        precision=opened.precision,
        repeat=SLOWDOWN_WINDOWS,
    )
    return {
        "one_lane_ms_per_token": xl.median,
        "vanilla_ms_per_token": vanilla.median,
        "slowdown": vanilla.median / xl.median,
    }


def over_windows(
    scoring: Scoring, lengths: Sequence[int], *, stride: int, batch_size: int | None
) -> Iterator[RowAndLosses]:
    """Yield the result for each window length.

    `batch_size` windows are computed at once; None lets the device decide.
    """
    for length in lengths:
        tokens = len(scoring.text.targets)  # a window longer than the text predicts all of it at once
        windows = batch_size or windows_at_once(scoring.opened.model.device, min(length, tokens))
        of_windows = dataclasses.replace(scoring.settings, batch_size=windows)
        with explained(Reading(opened=scoring.opened, settings=of_windows, attn_len=min(length, tokens))):
            scores = scoring.score_by(
                score_windows_in_processes,
                title=f"N = {length}",
                world=scoring.world,
                attn_len=length,
                stride=stride,
                windows=windows,
                max_distance=scoring.settings.max_distance,
            )
        fewest, most = (length - stride + 1, length) if length < tokens else (tokens, tokens)
        window = scoring.opened.model.settings.attention_window or most
        with scoring.world.failing_together():
            row = make_row(scoring.with_settings(mem_len=0, seg_len=length), scores)
        spans = {
            "attn_len_min": min(fewest, window),
            "attn_len_max": min(most, window),
            "attn_len": length,
            "stride": stride,
        }
        yield {**row, **NO_SLOWDOWN, **spans}, scores.losses_nats
