"""Scores a text for `txl eval`, one row per way of reading it."""

import dataclasses
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.errors import TrainingError
from txlcli.paper import metrics
from txlcli.workflows.evaluation.texts import ScoredText

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.config.settings import EvalSettings
    from txlcli.core.reading.scoring import Scores
    from txlcli.runs.loading import OpenRun

Row = dict[str, Any]
"""What one way of reading gave, as --json has it."""

SLOWDOWN_WINDOWS = 3
NO_SLOWDOWN = {"one_lane_ms_per_token": None, "vanilla_ms_per_token": None, "slowdown": None}


def over_memory(
    opened: "OpenRun",
    source: ScoredText,
    reading: "EvalSettings",
    lengths: list[int],
    *,
    shown: bool,
    timed: bool = True,
) -> "Iterator[tuple[Row, NDArray[np.float32]]]":
    """A row for each memory length, with its slowdown where it is timed; and the loss of each token, (T,)."""
    for length in lengths:
        how = dataclasses.replace(reading, mem_len=length)
        scores = _score(opened, source, how, shown=shown)
        found = row(opened, source, how, scores)
        yield {**found, **(_slowdown(opened, source, how) if timed else NO_SLOWDOWN)}, scores.losses_nats


def over_windows(
    opened: "OpenRun",
    source: ScoredText,
    reading: "EvalSettings",
    lengths: list[int],
    stride: int,
    *,
    windows: int | None,
    shown: bool,
) -> "Iterator[tuple[Row, NDArray[np.float32]]]":
    """A row for each window length, and the loss of each token, (T,); `windows` are read side by side."""
    from txlcli.core.model.transformer_xl import TransformerXL
    from txlcli.core.reading.windows import score_windows

    assert isinstance(opened.model, TransformerXL)  # a state is refused windows before
    for length in lengths:
        with console.progress(f"N = {length}", total=len(source.targets), unit="tokens", shown=shown) as bar:
            scores = score_windows(
                opened.model,
                source.inputs,
                source.targets,
                attn_len=length,
                stride=stride,
                windows=windows,
                max_distance=reading.max_distance,
                precision=opened.precision,
                on_tokens=bar.reach,
            )
        how = dataclasses.replace(reading, mem_len=0, seg_len=length)
        tokens = len(source.targets)  # a window that long predicts all of them
        fewest, most = (length - stride + 1, length) if length < tokens else (tokens, tokens)
        seen = {"attn_len_min": fewest, "attn_len_max": most, "attn_len": length, "stride": stride}
        yield {**row(opened, source, how, scores), **NO_SLOWDOWN, **seen}, scores.losses_nats


def _score(opened: "OpenRun", source: ScoredText, how: "EvalSettings", *, shown: bool) -> "Scores":
    from txlcli.core.reading.scoring import score

    what = "reading" if opened.run.settings.model.recurrent_state else f"M = {how.mem_len}"
    with console.progress(what, total=len(source.targets), unit="tokens", shown=shown) as bar:
        return score(opened.model, source.inputs, source.targets, how, precision=opened.precision, on_tokens=bar.reach)


def row(
    opened: "OpenRun", source: ScoredText, how: "EvalSettings", scores: "Scores", *, instead: str = "train it again"
) -> Row:
    """What one reading gave, apart from the slowdown; a model that carries a state attends to nothing.

    Args:
        opened: the run.
        source: the text.
        how: how it was read.
        scores: what that gave.
        instead: the next step where even fp32 gives no finite loss.

    Raises:
        TrainingError: the loss is not finite.
    """
    from txlcli.core.reading.scoring import attention_span_in

    if metrics.finite(scores.total_nats) is None:
        step = without_finite_loss(opened.precision, instead)
        raise TrainingError(f"{opened.run.folder}: the loss of {source.title} is not finite; {step}")
    fewest, most = None, None
    if not opened.run.settings.model.recurrent_state:
        fewest, most = attention_span_in(opened.model, how, len(source.targets))
    return {
        "mem_len": how.mem_len,
        "attn_len_min": fewest,
        "attn_len_max": most,
        "tokens": len(scores.losses_nats),
        "lanes": scores.lanes,
        "loss_nats": scores.total_nats / len(scores.losses_nats),
        **{name: metrics.finite(value) for name, value in metrics.measures(scores.total_nats, source.scored).items()},
        "ms_per_token": scores.ms_per_token,
    }


def without_finite_loss(precision: str, instead: str) -> str:
    """The next step where a loss in this precision is not finite; fp32 may help only where it was not used."""
    return instead if precision == "fp32" else f"evaluate with --precision fp32, or {instead}"


def _slowdown(opened: "OpenRun", source: ScoredText, how: "EvalSettings") -> dict[str, Any]:
    """How much slower the vanilla model is, one prediction per window of as many keys, where the text has so many."""
    from txlcli.core.measures.timing import time_evaluation, time_vanilla
    from txlcli.core.reading.scoring import attention_span

    tokens = len(source.targets)
    one_lane = dataclasses.replace(how, batch_size=1, seg_len=min(how.seg_len, tokens))
    _, most = attention_span(one_lane)
    known = opened.run.settings.model.longest_window
    if how.mem_len == 0 or how.mem_len > tokens or (known is not None and most > known):  # no window is that long
        return NO_SLOWDOWN
    xl = time_evaluation(opened.model, one_lane, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    vanilla = time_vanilla(
        opened.model,
        most,
        windows=1,
        max_distance=how.max_distance,
        precision=opened.precision,
        repeat=SLOWDOWN_WINDOWS,
    )
    return {
        "one_lane_ms_per_token": xl.median,
        "vanilla_ms_per_token": vanilla.median,
        "slowdown": vanilla.median / xl.median,
    }
