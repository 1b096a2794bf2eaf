"""Evaluates a run: opens it, scores a text with each requested setting, and collects the results."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.config.settings import AttentionBackend, EvalSettings
from txlcli.core.kernels.compilation import check_attention
from txlcli.errors import UsageError
from txlcli.runs import loading
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import record, texts
from txlcli.workflows.evaluation.adapted import adapted_rows
from txlcli.workflows.evaluation.memory import over_memory
from txlcli.workflows.evaluation.options import EvalOptions, first_option
from txlcli.workflows.evaluation.record import Row
from txlcli.workflows.evaluation.search import search
from txlcli.workflows.evaluation.texts import ScoredText
from txlcli.workflows.evaluation.windows import over_windows
from txlcli.workflows.reporter import Reporter


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Results of an evaluation, with the run and the text."""

    opened: OpenRun
    text: ScoredText
    result: dict[str, Any]
    """Object that --json prints."""
    losses_nats: list[NDArray[np.float32]]
    """Loss of each token, (T,), for each row of the result."""
    ended_by: BaseException | None
    """Error or Ctrl-C that ended the sweep; the result then lacks the remaining rows."""

    def record(self, reporter: Reporter) -> None:
        """Append the rows to the run's evals.jsonl."""
        record.record(self.opened, self.text, self.result, reporter)

    def raise_pending(self) -> None:
        """Raise the exception that ended the sweep; call this after the rows have been shown and recorded."""
        if self.ended_by is not None:
            raise self.ended_by


def evaluate(
    run_name: str | None,
    options: EvalOptions,
    *,
    device: str = "auto",
    precision: str | None = None,
    data_dir: Path,
    runs_dir: Path,
    reporter: Reporter,
) -> Evaluation:
    """Evaluate a run, by default the most recent one, without recording the result.

    An exception after the first row ends the sweep: `Evaluation.ended_by`.

    Raises:
        RunError: the run does not exist or cannot be opened.
        UsageError: the options do not fit the run.
        StoreError: the store is missing, or is not the one the run was trained on.
    """
    opened = loading.open_run(run_name, runs_dir, device=device, precision=precision)
    _check_options(opened, options)
    if options.attention is not None:
        _set_attention_backend(options.attention, opened)
    run = opened.run
    reporter.say(f"evaluating {run.folder} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    settings = options.apply_to(run.settings.evaluation_settings())
    text = _text(opened, options, data_dir, reporter)
    selected = None
    if options.searched:
        selected = search(opened, settings, options, data_dir, reporter)
        options = options.with_length(selected["found"])
    rows: list[Row] = []
    losses: list[NDArray[np.float32]] = []
    ended_by = None
    try:
        for row, token_losses in _rows(opened, text, settings, options, data_dir, reporter):
            rows.append(row)
            losses.append(token_losses)
    except BaseException as error:  # a sweep can take hours: finished rows are shown and recorded first
        if not rows:
            raise
        ended_by = error
    result = record.make_result(opened, text, settings, rows, selected, complete=ended_by is None)
    return Evaluation(opened, text, result, losses, ended_by)


def _text(opened: OpenRun, options: EvalOptions, data_dir: Path, reporter: Reporter) -> ScoredText:
    if options.text is not None:
        return texts.encode_text(opened, options.text, options.positions, reporter)
    return texts.split_text(opened, options.split or "test", options.positions, data_dir, reporter)


def _rows(
    opened: OpenRun,
    text: ScoredText,
    settings: EvalSettings,
    options: EvalOptions,
    data_dir: Path,
    reporter: Reporter,
) -> Iterator[tuple[Row, NDArray[np.float32]]]:
    """Yield a row for each setting, with the loss of each token."""
    mem_lens = options.mem_lens or (settings.mem_len,)
    if options.adapts:
        with_length = dataclasses.replace(settings, mem_len=mem_lens[0])
        return adapted_rows(opened, text, with_length, options, data_dir, reporter)
    if options.windows:
        stride = options.stride or 1
        return over_windows(
            opened, text, settings, options.windows, reporter, stride=stride, batch_size=options.batch_size
        )
    return over_memory(opened, text, settings, mem_lens, reporter, timed=options.timed)


def _set_attention_backend(backend: AttentionBackend, opened: OpenRun) -> None:
    check_attention(backend, opened.model.device)
    opened.model.set_attention_backend(backend)


def _check_options(opened: OpenRun, options: EvalOptions) -> None:
    """Refuse options that do not fit the model or its precision."""
    settings, folder = opened.run.settings, opened.run.folder
    if settings.model.recurrent_state and (option := first_option(_attention_options(options))):
        raise UsageError(
            f'{folder} has a recurrent state (arch = "{settings.model.arch}") and no attention; leave out {option}'
        )
    if options.max_distance is not None and not settings.model.limits_distance:
        raise UsageError(f"{folder}: its encoding of positions has no such limit; leave out --max-distance")
    settings.check_memory(max(options.mem_lens, default=0), run=folder, instead="give --attn-len instead of --mem-len")
    settings.check_attn_lens(options.windows, subject=folder)
    if options.dynamic and opened.precision == "fp16":
        raise UsageError("--dynamic trains the model, which fp16 is too coarse for; add --precision bf16 or fp32")


def _attention_options(options: EvalOptions) -> dict[str, object]:
    """Return the options that only a model with attention has."""
    return {
        "--mem-len": options.mem_len,
        "--attn-len": options.attn_len,
        "--max-distance": options.max_distance,
        "--plot": options.plotted or None,
        options.same_length_option: options.same_length,
        "--attention": options.attention,
    }
