"""Scores a text with memory, for each memory length."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.measures.timing import time_evaluation, time_vanilla
from txlcli.core.reading.scoring import Scores, attention_span, score
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation.record import NO_SLOWDOWN, SLOWDOWN_WINDOWS, Row, make_row
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.reporter import Reporter


def over_memory(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    lengths: Sequence[int],
    reporter: Reporter,
    *,
    timed: bool = True,
) -> Iterator[tuple[Row, NDArray[np.float32]]]:
    """Yield for each memory length its row, with the slowdown if `timed`, and the loss of each token, (T,)."""
    for length in lengths:
        with_length = dataclasses.replace(settings, mem_len=length)
        scores = _score(opened, text, with_length, reporter)
        row = make_row(opened, text, with_length, scores)
        yield {**row, **(_slowdown(opened, text, with_length) if timed else NO_SLOWDOWN)}, scores.losses_nats


def _score(opened: OpenRun, text: ScoredText, settings: EvalSettings, reporter: Reporter) -> Scores:
    description = "evaluation" if opened.run.settings.model.recurrent_state else f"M = {settings.mem_len}"
    with reporter.progress(description, total=len(text.targets), unit="tokens") as bar:
        return score(opened.model, text.inputs, text.targets, settings, precision=opened.precision, on_tokens=bar.reach)


def _slowdown(opened: OpenRun, text: ScoredText, settings: EvalSettings) -> dict[str, Any]:
    """Time one lane with memory against the vanilla model, which recomputes a window of as many keys per prediction.

    No slowdown if the text is shorter than the memory, or if the model has fewer learned positions.
    """
    tokens = len(text.targets)
    one_lane = dataclasses.replace(settings, batch_size=1, seg_len=min(settings.seg_len, tokens))
    _, attn_len = attention_span(one_lane)
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
