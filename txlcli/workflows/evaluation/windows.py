"""Scores a text without memory, by sliding windows, for each window length."""

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import EvalSettings
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.windows import score_windows
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation.record import NO_SLOWDOWN, Row, make_row
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.reporter import Reporter


def over_windows(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    lengths: Sequence[int],
    reporter: Reporter,
    *,
    stride: int,
    batch_size: int | None,
) -> Iterator[tuple[Row, NDArray[np.float32]]]:
    """Yield for each window length its row and the loss of each token, (T,).

    `batch_size` windows are computed at once; None lets the device decide.
    """
    assert isinstance(opened.model, TransformerXL)  # models with a recurrent state have been refused
    for length in lengths:
        with reporter.progress(f"N = {length}", total=len(text.targets), unit="tokens") as bar:
            scores = score_windows(
                opened.model,
                text.inputs,
                text.targets,
                attn_len=length,
                stride=stride,
                windows=batch_size,
                max_distance=settings.max_distance,
                precision=opened.precision,
                on_tokens=bar.reach,
            )
        tokens = len(text.targets)  # a window longer than the text predicts all of it at once
        fewest, most = (length - stride + 1, length) if length < tokens else (tokens, tokens)
        row = make_row(opened, text, dataclasses.replace(settings, mem_len=0, seg_len=length), scores)
        spans = {"attn_len_min": fewest, "attn_len_max": most, "attn_len": length, "stride": stride}
        yield {**row, **NO_SLOWDOWN, **spans}, scores.losses_nats
