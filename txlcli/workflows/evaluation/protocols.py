"""Compares protocols of evaluation: the same weights and tokens, read in windows computed anew, or with memory.

Axes: N window length, S stride, M memory length.
"""

from collections.abc import Iterator

from txlcli.config.settings import EvalSettings, Settings
from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation.lengths import RowAndLosses, over_memory, over_windows
from txlcli.workflows.evaluation.options import PROTOCOLS, EvalOptions
from txlcli.workflows.evaluation.texts import Scoring

RECURRENCE = "recurrence"


def lacking(opened: OpenRun, options: EvalOptions) -> dict[str, str]:
    """Return the requested protocols that the model lacks, each with the reason."""
    settings = opened.run.settings
    if RECURRENCE not in options.protocols or settings.model.recurrent_state or _mem_lens(settings.eval, options):
        return {}
    reason = f"{opened.run.directory} was trained without memory"
    if settings.supports_memory:
        return {RECURRENCE: f"{reason}; --mem-len M evaluates it with one"}
    return {RECURRENCE: f"{reason} and with absolute positions"}


def check(opened: OpenRun, options: EvalOptions) -> None:
    """Refuse protocols and lengths that do not fit the model.

    Raises:
        UsageError: the model lacks a protocol and not all of them were requested, a window is longer than its learned
            positions, or the stride is longer than a window.
    """
    missing = lacking(opened, options)
    if missing and options.protocols != PROTOCOLS:
        name, reason = next(iter(missing.items()))
        raise UsageError(f"--protocols {name}: {reason}; or leave {name} out")
    windows = window_lens(opened.run.settings, options)
    opened.run.settings.check_attn_lens(windows, subject=opened.run.directory)
    if options.stride is not None and options.stride > min(windows):
        raise UsageError(f"--stride {options.stride} exceeds the window length {min(windows)}; give at most that")


def window_lens(settings: Settings, options: EvalOptions) -> tuple[int, ...]:
    """Return the window lengths: those given, or the memory lengths, or the trained segment length."""
    longest = settings.model.longest_window
    lengths = options.windows or _mem_lens(settings.eval, options) or (settings.train.seg_len,)
    return lengths if options.windows or longest is None else tuple(dict.fromkeys(min(n, longest) for n in lengths))


def _mem_lens(settings: EvalSettings, options: EvalOptions) -> tuple[int, ...]:
    """Return the memory lengths: those given, or that of the recipe; empty without memory."""
    return options.mem_lens or ((settings.mem_len,) if settings.mem_len else ())


def protocol_rows(scoring: Scoring, options: EvalOptions) -> Iterator[RowAndLosses]:
    """Yield the result of each protocol and length, with its relative change of the metric from the first one."""
    metric, first = metrics.metric_of(scoring.text.unit), None
    for protocol in options.protocols:
        for row, losses in _rows(scoring, options, protocol):
            first = first if first is not None else row[metric]
            known = first is not None and row[metric] is not None  # a perplexity that overflows is None
            yield {**row, "protocol": protocol, "change": row[metric] / first - 1 if known else None}, losses


def _rows(scoring: Scoring, options: EvalOptions, protocol: str) -> Iterator[RowAndLosses]:
    settings = scoring.opened.run.settings
    if protocol == RECURRENCE:
        lengths = (0,) if settings.model.recurrent_state else _mem_lens(settings.eval, options)
        yield from over_memory(scoring, lengths, timed=False)
        return
    for length in window_lens(settings, options):
        stride = {"disjoint": length, "strided": options.stride or max(1, length // 2), "sliding": 1}[protocol]
        if protocol == "sliding" and length > 1:
            scoring.reporter.say(
                f"sliding windows of {length} read every token {length} times; Ctrl-C shows the rows before them"
            )
        rows = over_windows(scoring, [length], stride=stride, batch_size=options.batch_size)
        yield from (({**row, "seg_len": None, "same_length": None}, losses) for row, losses in rows)
