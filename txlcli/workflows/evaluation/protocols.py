"""Compares protocols of evaluation: the same weights and tokens, read in windows computed anew, or with memory.

Axes: N window length, S stride, M memory length.
"""

import dataclasses
from collections.abc import Iterator

from txlcli.config.settings import EvalSettings, Settings
from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation.sweep import EvalRow, in_windows, with_memory
from txlcli.workflows.evaluation.texts import Scoring
from txlcli.workflows.options import PROTOCOLS, EvalOptions

RECURRENCE = "recurrence"


def lacking(opened: OpenRun, options: EvalOptions) -> dict[str, str]:
    """Return the requested protocols that the model lacks, each with the reason."""
    settings = opened.run.settings
    if RECURRENCE not in options.protocols or settings.model.recurrent_state or _mem_lens(settings.eval, options):
        return {}
    next_step = "; give a memory length to evaluate it with one"
    ending = next_step if settings.supports_memory else " and with absolute positions"
    return {RECURRENCE: f"{opened.run.directory} was trained without memory{ending}"}


def check(opened: OpenRun, options: EvalOptions) -> None:
    """Reject protocols and lengths that do not fit the model; it may lack a protocol if all were requested."""
    if options.protocols != PROTOCOLS:
        for name, reason in lacking(opened, options).items():
            raise UsageError(f"`protocols` {name}: {reason}; or leave {name} out")
    windows = window_lens(opened.run.settings, options)
    opened.run.settings.check_attn_lens(windows, subject=opened.run.directory)
    if options.stride is not None and options.stride > min(windows):
        raise UsageError(f"`stride` {options.stride} exceeds the window length {min(windows)}; give at most that")


def window_lens(settings: Settings, options: EvalOptions) -> tuple[int, ...]:
    """Return the window lengths: those given, or the memory lengths, or the trained segment length."""
    longest = settings.model.longest_window
    lengths = options.windows or _mem_lens(settings.eval, options) or (settings.train.seg_len,)
    return lengths if options.windows or longest is None else tuple(dict.fromkeys(min(n, longest) for n in lengths))


def _mem_lens(settings: EvalSettings, options: EvalOptions) -> tuple[int, ...]:
    """Return the memory lengths: those given, or that of the recipe; empty without memory."""
    return options.mem_lens or ((settings.mem_len,) if settings.mem_len else ())


def protocol_rows(scoring: Scoring, options: EvalOptions) -> Iterator[EvalRow]:
    """Yield the result of each protocol and length, with its relative change of the metric from the first one."""
    metric, first = metrics.metric_of(scoring.text.unit), None
    for protocol, row in _rows(scoring, options):
        value = row.measures[metric]  # a perplexity that overflows is None
        first = first or value
        change = value / first - 1 if first and value is not None else None
        yield dataclasses.replace(row, protocol=protocol, change=change)


def _rows(scoring: Scoring, options: EvalOptions) -> Iterator[tuple[str, EvalRow]]:
    settings = scoring.opened.run.settings
    for protocol in options.protocols:
        if protocol == RECURRENCE:
            for mem_len in (0,) if settings.model.recurrent_state else _mem_lens(settings.eval, options):
                yield protocol, with_memory(scoring, mem_len)
            continue
        for length in window_lens(settings, options):
            stride = {"disjoint": length, "strided": options.stride or max(1, length // 2), "sliding": 1}[protocol]
            if protocol == "sliding" and length > 1:
                scoring.reporter.say(
                    f"sliding windows of {length} read every token {length} times; Ctrl-C shows the rows before them"
                )
            yield protocol, in_windows(scoring, length, stride=stride, batch_size=options.batch_size)
