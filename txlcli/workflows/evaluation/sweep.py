"""Scores a text with one setting: with a memory, or in windows without memory; and by each protocol of evaluation.

The length can be searched for on the validation split. Axes: N window length, S stride, M memory length.
"""

import dataclasses
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import Settings
from txlcli.core.measures.timing import time_evaluation, time_vanilla
from txlcli.core.reading.documents import Document, score_documents
from txlcli.core.reading.scoring import Scores, Stream, attention_span, attention_span_in
from txlcli.core.reading.windows import score_windows, windows_at_once
from txlcli.core.training.distributed import even_parts
from txlcli.core.training.validation import add_shares, check_lanes, score_in_processes
from txlcli.errors import TrainingError, UsageError
from txlcli.paper import effective_length, metrics
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.temperature import with_temperature
from txlcli.workflows.evaluation.texts import Scoring
from txlcli.workflows.options import AUTO, PROTOCOLS, EvalOptions
from txlcli.workflows.workspace import Workspace

DOCUMENTS_AT_ONCE = 1024
"""Documents that are ordered by length together."""
SHORT_LANE = 10
"""A lane shorter than this many memory lengths is short: the missing context at its start changes the result."""
SLOWDOWN_WINDOWS = 3
"""Repetitions of the timing."""
SEARCH_STEPS = 16
"""The resolution of the search is the trained length divided by this."""


@dataclass(frozen=True, kw_only=True)
class EvalRow:
    """Result for one setting."""

    mem_len: int
    """Memory length M in tokens; 0 in windows."""
    attn_len_min: int | None
    """Smallest number of keys that a query sees; None for a recurrent state."""
    attn_len_max: int | None
    tokens: int
    """Number of scored tokens."""
    lanes: int
    loss_nats: float
    """Mean loss in nats per token."""
    measures: dict[str, float | None]
    """Results by name: those of `metrics.measures` for which there are counts; None if they overflow."""
    ms_per_token: float
    """Wall time per token, all lanes together."""
    one_lane_ms_per_token: float | None = None
    """Time per token of one lane with memory; None if not measured."""
    vanilla_ms_per_token: float | None = None
    """Time per token of the vanilla model, which recomputes a window of as many keys; None if not measured."""
    slowdown: float | None = None
    """Time of the vanilla model divided by the time with memory (section 4.5)."""
    attn_len: int | None = None
    """Window length N; None with memory."""
    stride: int | None = None
    """Tokens predicted per window; None with memory."""
    temperature: float = 1.0
    """Number that the logits were divided by."""
    protocol: str | None = None
    """Name in a comparison of protocols."""
    change: float | None = None
    """Relative change of the metric from the first protocol; None if a perplexity overflows."""
    documents: int | None = None
    """Number of documents that were read from an empty memory each; None in other evaluations."""
    method: str | None = None
    """Way of adaptation: model, cache or dynamic; None in other evaluations."""
    adaptation: dict[str, float] = dataclasses.field(default_factory=dict)
    """Parameters of the method."""
    best: bool = False
    """True for the lowest loss of the result."""
    losses_nats: NDArray[np.float32] = dataclasses.field(repr=False)
    """Loss of each token, (T,)."""

    def to_json(self) -> dict[str, Any]:
        """Return the row of `--json`, which has the keys of its kind of evaluation only."""
        row = vars(self) | self.measures
        if self.protocol and self.stride:
            row |= {"seg_len": None, "same_length": None}  # which are settings of recurrence
        absent = ["losses_nats", "measures"]
        absent += ["attn_len", "stride"] if self.stride is None else []
        absent += ["temperature"] if self.temperature == 1 else []
        absent += ["protocol", "change"] if self.protocol is None else []
        absent += ["documents"] if self.documents is None else []
        absent += ["method", "adaptation"] if self.method is None else []
        return {key: value for key, value in row.items() if key not in absent}


def with_memory(scoring: Scoring, mem_len: int, *, timed: bool = False) -> EvalRow:
    """Score the text with a memory length, and time the slowdown if `timed`."""
    scoring = scoring.changed(mem_len=mem_len)
    title = "evaluation" if scoring.opened.model.has_recurrent_state else f"M = {mem_len}"
    scored = partial(score_in_processes, world=scoring.world)
    row = make_row(scoring, scoring.score(scored, title))
    one_lane, vanilla = scoring.world.from_rank_0(partial(_times, scoring)) if timed else (None, None)
    ratio = vanilla / one_lane if one_lane and vanilla else None
    return dataclasses.replace(row, one_lane_ms_per_token=one_lane, vanilla_ms_per_token=vanilla, slowdown=ratio)


def over_documents(scoring: Scoring, mem_len: int, workspace: Workspace) -> EvalRow:
    """Score the documents of a split, each from an empty memory; its first token follows the one before it alone."""
    scoring = scoring.changed(mem_len=mem_len)
    firsts, world = texts.first_targets(scoring, workspace), scoring.world
    edges = [*firsts, len(scoring.text.targets)]

    def scored(stream: Stream) -> Scores:
        started, losses = time.perf_counter(), [np.zeros(0, dtype=np.float32)]
        own = even_parts(len(firsts), world.size)[world.rank]
        for first in range(own.start, own.stop, DOCUMENTS_AT_ONCE):
            bounds = edges[first : min(first + DOCUMENTS_AT_ONCE, own.stop) + 1]
            documents = [Document(stream.inputs[a:b], stream.targets[a:b]) for a, b in pairwise(bounds)]
            scores = score_documents(stream.model, documents, stream.settings, precision=stream.precision)
            losses += [score.losses_nats for score in scores]
            stream.on_tokens(bounds[-1] - edges[own.start])
        parts, seconds = zip(
            *world.gather_objects((np.concatenate(losses), time.perf_counter() - started)), strict=True
        )
        return Scores(np.concatenate(parts), max(seconds), min(stream.settings.batch_size, len(firsts)))

    row = make_row(scoring, scoring.score(scored, f"M = {mem_len}"))
    row = dataclasses.replace(row, documents=len(firsts))
    if row.attn_len_max is None:
        return row
    longest, alone = max(b - a for a, b in pairwise(edges)), dataclasses.replace(scoring.settings, batch_size=1)
    fewest, most = attention_span_in(scoring.opened.model, alone, longest)
    return dataclasses.replace(row, attn_len_min=fewest, attn_len_max=most)


def in_windows(scoring: Scoring, length: int, *, stride: int, batch_size: int | None) -> EvalRow:
    """Score the text with a window length, without memory.

    `batch_size` windows are computed at once; None lets the device decide.
    """
    model, tokens = scoring.opened.model, len(scoring.text.targets)
    windows = batch_size or windows_at_once(model.device, min(length, tokens))
    scoring = scoring.changed(mem_len=0, seg_len=length, batch_size=windows)
    share = (scoring.world.rank, scoring.world.size)
    scored = partial(score_windows, stride=stride, share=share)
    scores = add_shares(scoring.score(scored, f"N = {length}"), scoring.world)
    # A window longer than the text predicts all of it at once.
    fewest, most = (length - stride + 1, length) if length < tokens else (tokens, tokens)
    window = model.settings.attention_window or most
    return dataclasses.replace(
        make_row(scoring, scores),
        attn_len_min=min(fewest, window),
        attn_len_max=min(most, window),
        attn_len=length,
        stride=stride,
    )


def _times(scoring: Scoring) -> tuple[float, float] | tuple[None, None]:
    """Time one lane with memory, and the vanilla model with as many keys; return ms per token.

    No times if the text is shorter than the memory, or if the model has fewer learned positions.
    """
    opened, settings, tokens = scoring.opened, scoring.settings, len(scoring.text.targets)
    one_lane = dataclasses.replace(settings, batch_size=1, seg_len=min(settings.seg_len, tokens))
    _, attn_len = attention_span(opened.model.settings, one_lane)
    longest = opened.run.settings.model.longest_window
    if settings.mem_len == 0 or settings.mem_len > tokens or (longest is not None and attn_len > longest):
        return None, None
    xl = time_evaluation(opened.model, one_lane, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    windows = dataclasses.replace(one_lane, seg_len=attn_len, mem_len=0)
    vanilla = time_vanilla(opened.model, windows, precision=opened.precision, repeat=SLOWDOWN_WINDOWS)
    return xl.median, vanilla.median


def make_row(scoring: Scoring, scores: Scores, *, next_step: str = "train it again") -> EvalRow:
    """Return the result for one setting, without times of one lane; a recurrent state has no attention length.

    `next_step` is the advice of the error if the loss is not finite, not even in fp32.
    """
    opened, text, settings = scoring.opened, scoring.text, scoring.settings
    if not math.isfinite(scores.total_nats):
        advice = non_finite_advice(opened.precision, next_step)
        raise TrainingError(f"{opened.run.directory}: the loss of {text.title} is not finite; {advice}")
    is_state = opened.run.settings.model.recurrent_state
    fewest, most = (None, None) if is_state else attention_span_in(opened.model, settings, len(text.targets))
    measures = metrics.measures(scores.total_nats, text.scored)
    return EvalRow(
        mem_len=settings.mem_len,
        attn_len_min=fewest,
        attn_len_max=most,
        tokens=len(scores.losses_nats),
        lanes=scores.lanes,
        loss_nats=scores.total_nats / len(scores.losses_nats),
        measures={name: metrics.finite(value) for name, value in measures.items()},
        ms_per_token=scores.ms_per_token,
        temperature=float(settings.temperature),
        losses_nats=scores.losses_nats,
    )


def non_finite_advice(precision: str, next_step: str) -> str:
    """Return the next step after a non-finite loss; fp32 can help only if 16 bits were used."""
    return next_step if precision in ("fp32", "tf32") else f"evaluate with `precision` fp32, or {next_step}"


def lacking_protocols(opened: OpenRun, options: EvalOptions) -> dict[str, str]:
    """Return the requested protocols that the model lacks, each with the reason."""
    settings = opened.run.settings
    if "recurrence" not in options.protocols or settings.model.recurrent_state or _mem_lens(settings, options):
        return {}
    next_step = "; give a memory length to evaluate it with one"
    ending = next_step if settings.supports_memory else " and with absolute positions"
    return {"recurrence": f"{opened.run.directory} was trained without memory{ending}"}


def check_protocols(opened: OpenRun, options: EvalOptions) -> None:
    """Reject protocols and lengths that do not fit the model; it may lack a protocol if all were requested."""
    if options.protocols != PROTOCOLS:
        for name, reason in lacking_protocols(opened, options).items():
            raise UsageError(f"`protocols` {name}: {reason}; or leave {name} out")
    shortest = min(_window_lens(opened.run.settings, options))
    if (options.stride or 0) > shortest:
        raise UsageError(f"`stride` {options.stride} exceeds the window length {shortest}; give at most that")


def _window_lens(settings: Settings, options: EvalOptions) -> tuple[int, ...]:
    """Return the window lengths: those given, or the memory lengths, or the trained segment length."""
    lengths = _mem_lens(settings, options) or (settings.train.seg_len,)
    longest = settings.model.longest_window or MAX_COUNT
    return options.windows or tuple(dict.fromkeys(min(length, longest) for length in lengths))


def _mem_lens(settings: Settings, options: EvalOptions) -> tuple[int, ...]:
    """Return the memory lengths: those given, or that of the recipe; empty without memory."""
    return options.mem_lens or ((settings.eval.mem_len,) if settings.eval.mem_len else ())


def at_window(scoring: Scoring, length: int, stride: int, options: EvalOptions, workspace: Workspace) -> EvalRow:
    """Score the text in windows of a length, with its temperature."""
    score = partial(in_windows, length=length, stride=stride, batch_size=options.batch_size)
    return score(with_temperature(scoring, score, options, workspace))


def over_protocols(scoring: Scoring, options: EvalOptions, workspace: Workspace) -> Iterator[EvalRow]:
    """Yield the result of each protocol and length, with its relative change of the metric from the first one."""
    metric, first = metrics.metric_of(scoring.text.unit), None
    if "recurrence" in options.protocols and not lacking_protocols(scoring.opened, options):
        check_lanes(len(scoring.text.targets), scoring.settings, scoring.world.size)  # before other rows take hours
    for protocol in options.protocols:
        for row in _of_protocol(scoring, options, protocol, workspace):
            value = row.measures[metric]  # a perplexity that overflows is None
            first = first or value
            change = value / first - 1 if first and value is not None else None
            yield dataclasses.replace(row, protocol=protocol, change=change)


def _of_protocol(scoring: Scoring, options: EvalOptions, protocol: str, workspace: Workspace) -> Iterator[EvalRow]:
    settings = scoring.opened.run.settings
    if protocol == "recurrence":
        for mem_len in (0,) if settings.model.recurrent_state else _mem_lens(settings, options):
            score = partial(with_memory, mem_len=mem_len)
            yield score(with_temperature(scoring, score, options, workspace))
        return
    for length in _window_lens(settings, options):
        stride = {"disjoint": length, "strided": options.stride or max(1, length // 2), "sliding": 1}[protocol]
        if protocol == "sliding" and length > 1:
            scoring.reporter.say(
                f"sliding windows of {length} read every token {length} times; Ctrl-C shows the rows before them"
            )
        yield at_window(scoring, length, stride, options, workspace)


@dataclass(frozen=True)
class LengthSearch(effective_length.Search):
    """Search for the shortest length beyond which longer ones hardly lower the perplexity."""

    option: Literal["mem_len", "attn_len"]
    """Option whose length is searched for."""

    def to_json(self) -> dict[str, Any]:
        """Return the object of `--json`."""
        return {
            "option": "--" + self.option.replace("_", "-"),
            "split": "valid",
            "threshold": effective_length.THRESHOLD,
            "found": self.length,
            "gains_ended": self.ended,
            "tried": [{"length": length, "loss_nats": loss} for length, loss in self.tried.items()],
        }


def search_length(
    scoring: Scoring, option: Literal["mem_len", "attn_len"], options: EvalOptions, workspace: Workspace
) -> LengthSearch:
    """Search for the memory length, or the window length, on the validation split."""
    opened, reporter, stride = scoring.opened, scoring.reporter, options.stride or 1
    train, is_memory = opened.run.settings.train, option == "mem_len"
    if is_memory and train.mem_len == 0:
        raise UsageError(
            f"{opened.run.directory} was trained without memory; give `attn_len` auto instead of `mem_len`"
        )
    # Windows are tried in steps of at least a stride, since the shortest one is a step long and predicts a stride.
    step = max(stride, (train.mem_len if is_memory else train.seg_len) // SEARCH_STEPS)
    if options.text is not None:
        texts.warn_if_trained_on(opened, "valid", workspace)
    on_valid = scoring.on_valid(options.positions, workspace)
    if on_valid.settings.temperature == AUTO:
        on_valid = on_valid.changed(temperature=1.0)
    longest = tokens = len(on_valid.text.targets)
    if is_memory:
        score_at = partial(with_memory, on_valid)
    else:
        score_at = partial(in_windows, on_valid, stride=stride, batch_size=options.batch_size)
        longest = min(tokens, opened.run.settings.model.longest_window or tokens)
    if stride > longest:
        raise UsageError(
            f"`stride` {stride} exceeds the longest window that can be tried, {longest}; give at most that"
        )
    reporter.say(
        f"searching for the shortest length beyond which perplexity falls by less than "
        f"{effective_length.THRESHOLD:.1%}, on {tokens:,} tokens of valid, in steps of {step}"
    )

    def loss_at(length: int) -> float:
        row = score_at(length)
        ppl, bits = metrics.format_measure(row.measures["ppl"]), metrics.bits(row.loss_nats)
        reporter.say(f"`{option}` {length}: valid perplexity {ppl}, {bits:.4f} bits")
        return row.loss_nats

    # If every query sees M keys, M = 0 is not comparable: queries then see the 1 to L keys of their segment.
    least = 0 if is_memory and scoring.settings.same_length == "off" else step
    outcome = effective_length.find(loss_at, least=least, step=step, longest=longest)
    remark = "" if outcome.ended else "; the longest length tried still lowers the perplexity"
    reporter.say(f"selected `{option}` {outcome.length}{remark}")
    return LengthSearch(**vars(outcome), option=option)
