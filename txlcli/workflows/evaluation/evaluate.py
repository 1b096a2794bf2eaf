"""Evaluates a run: opens it, scores a text with each requested setting, and records the results."""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from txlcli import __version__
from txlcli.config import recipe
from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import Settings
from txlcli.core.kernels.device import pick_device
from txlcli.core.training import distributed
from txlcli.core.training.distributed import SINGLE_PROCESS, World
from txlcli.core.training.validation import check_lanes
from txlcli.data import loss_file
from txlcli.data.loss_file import TokenLosses
from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.loading import OpenRun
from txlcli.workflows.evaluation import texts
from txlcli.workflows.evaluation.options import AUTO, PROTOCOLS, SLOWDOWN_WINDOWS, EvalOptions
from txlcli.workflows.evaluation.rows import (
    SHORT_LANE,
    EvalRow,
    Score,
    in_windows,
    over_documents,
    with_memory,
    with_times,
)
from txlcli.workflows.evaluation.search import LengthSearch, adapted_rows, search_length, with_temperature
from txlcli.workflows.evaluation.texts import Scoring
from txlcli.workflows.workspace import Workspace, compile_reading

NOT_RECORDED = (
    "run",
    "position",
    "slowdown_windows",
    "paper",
    "search",
    "complete",
    "rows",
    "lacking",
    "best",
    "change",
)
"""Keys of the result and its rows that evals.jsonl does not have."""


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Result of an evaluation: what was scored, and one row per requested setting."""

    scoring: Scoring = field(repr=False)
    rows: tuple[EvalRow, ...]
    search: LengthSearch | None
    lacks_recurrence: str | None
    """Reason why the model lacks the protocol "recurrence", if it was requested."""
    ended_by: BaseException | None
    """Error or Ctrl-C that ended the sweep; the result then lacks the remaining rows."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl eval --json` prints."""
        opened, text, settings = self.scoring.opened, self.scoring.text, self.scoring.settings
        model = opened.model.settings
        in_segments = not all(row.stride for row in self.rows)  # windows have their own lengths
        result = {
            "run": str(opened.run.directory),
            "step": opened.checkpoint.state["step"],
            "text": text.title,
            "unit": text.unit,
            "metric": opened.run.metric,
            "conventions": text.conventions,
            "split_sha256": text.digest,
            "may_be_learned": text.may_be_trained_on,
            "seg_len": settings.seg_len if in_segments else None,
            "batch_size": settings.batch_size,
            "position": getattr(model, "position", None),
            "max_distance": settings.max_distance if model.has_attention else None,
            "same_length": settings.same_length if model.has_attention and in_segments else None,
            "precision": opened.precision,
            "attention": opened.model.attention_backend if model.has_attention else None,
            "processes": self.scoring.world.size,
            "slowdown_windows": SLOWDOWN_WINDOWS,
            "paper": text.paper,
            "search": self.search and self.search.to_json(),
            "complete": self.ended_by is None,
            "rows": [row.to_json() for row in self.rows],
        }
        lacking = {"recurrence": self.lacks_recurrence} if self.lacks_recurrence else {}
        return result | {"lacking": lacking} if self.compares_protocols else result

    @property
    def compares_protocols(self) -> bool:
        """True if each row is of a protocol."""
        return self.rows[0].protocol is not None

    def describe_settings(self, row: EvalRow) -> str:
        """Return the settings of a row in one sentence."""
        opened, settings = self.scoring.opened, self.scoring.settings
        model = opened.model.settings
        limit = f"max_distance = {settings.max_distance or 'none'}, " if model.limits_distance else ""
        precision = opened.precision
        if row.temperature != 1:
            chosen = " (chosen on valid)" if settings.temperature == AUTO else ""
            precision += f", temperature {row.temperature:g}{chosen}"
        if row.stride:
            several = f"the last {row.stride} predictions of each window"
            predicted = "one prediction per window" if row.stride == 1 else several
            return f"Without memory: each window is recomputed, {predicted}, {limit}{precision}."
        if row.documents:
            return (
                f"{row.documents:,} documents, each from an empty memory. L = {settings.seg_len}, {limit}{precision}."
            )
        lanes = f"{row.lanes} lanes, {row.lanes - 1} of them start without context." if row.lanes > 1 else "one lane."
        if row.attn_len_max is None:
            return f"The recurrent state is carried along the text. L = {settings.seg_len}, {precision}; {lanes}"
        mem_len = f"M = {row.mem_len}, " if row.method else ""
        same_length = f"same_length = {settings.same_length}, " if model.has_attention else ""
        return f"{mem_len}L = {settings.seg_len}, {same_length}{limit}{precision}; {lanes}"

    def raise_pending(self) -> None:
        """Raise the exception that ended the sweep; call this after the rows have been shown."""
        if self.ended_by is not None:
            raise self.ended_by


def run(run_name: str | None, options: EvalOptions, workspace: Workspace) -> EvalResult:
    """Evaluate a run, by default the most recent one, and append the rows to its evals.jsonl.

    If a launcher started several processes, they divide the lanes or windows, and all of them return the result.
    An exception after the first row ends the sweep: `EvalResult.ended_by`.
    """
    found = run_directory.find(run_name, workspace.runs_dir)
    world = distributed.join(
        pick_device(workspace.device), rank_timeout_s=found.settings.train.rank_timeout, next_step="evaluate again"
    )
    with world.failing_together():
        result = evaluate(workspace.open_run(str(found.weights or found.directory)), options, workspace, world)
    if world.is_rank_zero:
        _record(result)
    return result


def evaluate(opened: OpenRun, options: EvalOptions, workspace: Workspace, world: World = SINGLE_PROCESS) -> EvalResult:
    """Evaluate an open run, in the processes of `world`, without recording the result; see `run`."""
    scoring = _prepare(opened, options, workspace, world)
    if world.size > 1:
        world.agree(_common_facts(scoring, options))
    search = None
    if options.searched:
        search = search_length(scoring, options, partial(_score_at, options))
        found: dict[str, Any] = {search.option: (search.length,)}
        options = replace(options, **found)
    rows: list[EvalRow] = []
    ended_by = None
    try:
        for row in _rows(scoring, options):
            rows.append(row)
    except BaseException as error:  # a sweep can take hours: finished rows are shown and recorded first
        if not rows:
            raise
        ended_by = world.explained(error)
    best, metric = min(rows, key=lambda row: row.loss_nats), metrics.metric_of(scoring.text.unit)
    return EvalResult(
        scoring=scoring,
        rows=tuple(replace(row, best=row is best, change=_change(row, rows[0], metric)) for row in rows),
        search=search,
        lacks_recurrence=_lacks_recurrence(opened, options),
        ended_by=ended_by,
    )


def _change(row: EvalRow, first: EvalRow, metric: str) -> float | None:
    """Return the relative change of the metric from the first protocol."""
    before, now = first.measures[metric], row.measures[metric]
    return now / before - 1 if row.protocol and before and now is not None else None


def _rows(scoring: Scoring, options: EvalOptions) -> Iterator[EvalRow]:
    """Yield a row for each setting: here the memory length M, the window length N, or the protocol is swept."""
    default = scoring.settings.mem_len
    mem_lens = options.mem_lens or ((0, default) if options.html and default else (default,))
    if options.adapts:
        yield from adapted_rows(scoring.changed(mem_len=mem_lens[0]), options)
        return
    scores: list[tuple[str | None, Score]] = [
        (None, _score_at(options, length)) for length in options.windows or mem_lens
    ]
    if options.protocols:
        scores = list(_protocol_scores(scoring.opened.run.settings, options))
        if "recurrence" in dict(scores):
            check_lanes(len(scoring.text.targets), scoring.settings, scoring.world.size)  # before rows take hours
    for protocol, score in scores:
        tempered = with_temperature(scoring, score)
        row = replace(score(tempered), protocol=protocol)
        is_timed = options.timed and not (protocol or row.stride or row.documents)
        yield with_times(tempered, row) if is_timed else row


def _score_at(options: EvalOptions, length: int) -> Score:
    """Return the function that scores with a memory length, or with a window length."""
    if options.attn_len is not None:
        return partial(in_windows, length=length, stride=options.stride or 1, batch_size=options.batch_size)
    return partial(over_documents if options.reset_at_documents else with_memory, mem_len=length)


def _protocol_scores(settings: Settings, options: EvalOptions) -> Iterator[tuple[str, Score]]:
    """Yield the function that scores by each protocol, one for each length.

    The lengths are those given, or else the recipe's memory length, or the trained segment length.
    """
    mem_lens = options.mem_lens or tuple(filter(None, [settings.eval.mem_len]))
    lengths, longest = mem_lens or (settings.train.seg_len,), settings.model.longest_window or MAX_COUNT
    windows = options.windows or tuple(dict.fromkeys(min(length, longest) for length in lengths))
    if (options.stride or 0) > min(windows):
        raise UsageError(f"`stride` {options.stride} exceeds the window length {min(windows)}; give at most that")
    for protocol in options.protocols:
        if protocol == "recurrence":
            for mem_len in (0,) if settings.model.recurrent_state else mem_lens:
                yield protocol, partial(with_memory, mem_len=mem_len)
            continue
        for length in windows:
            stride = {"disjoint": length, "strided": options.stride or max(1, length // 2), "sliding": 1}[protocol]
            yield protocol, partial(in_windows, length=length, stride=stride, batch_size=options.batch_size)


def _lacks_recurrence(opened: OpenRun, options: EvalOptions) -> str | None:
    """Return the reason why the model lacks the protocol "recurrence", if it is requested."""
    settings = opened.run.settings
    reads_memory = settings.model.recurrent_state or options.mem_lens or settings.eval.mem_len
    if "recurrence" not in options.protocols or reads_memory:
        return None
    next_step = "; give a memory length to evaluate it with one"
    ending = next_step if settings.supports_memory else " and with absolute positions"
    return f"{opened.run.directory} was trained without memory{ending}"


def _prepare(opened: OpenRun, options: EvalOptions, workspace: Workspace, world: World) -> Scoring:
    """Check the options, and return the text to score and the settings."""
    run, reporter = opened.run, workspace.reporter
    check_options(opened, options)
    if options.attention is not None:
        opened.model.set_attention_backend(options.attention)
    compile_reading(opened, options, options.compile)
    reporter.say(f"evaluating {run.directory} ({run.best_or_last.name}, step {opened.checkpoint.state['step']:,})")
    settings = options.apply_to(run.settings.evaluation_settings())
    if options.text is None:
        text = texts.split_text(opened, options.split or "test", options.positions, workspace)
    else:
        text = texts.encode_text(opened, options.text, options.positions, reporter)
        if options.batch_size is None:  # as many lanes as the text can be cut into without short ones
            longest = max(settings.seg_len, *(options.mem_lens or [settings.mem_len]))
            lanes = max(1, min(settings.batch_size, len(text.targets) // (SHORT_LANE * longest)))
            settings = replace(settings, batch_size=lanes)
    if options.searched or options.adapts or settings.temperature == AUTO:
        if text.split is None:
            texts.warn_if_trained_on(opened, "valid", workspace)
        elif text.split == "valid":
            reporter.say("valid is used both for the search and for the result, which is therefore too optimistic")
    return Scoring(opened, text, settings, workspace, options.positions, world)


def check_options(opened: OpenRun, options: EvalOptions) -> None:
    """Reject options that do not fit the model or its precision."""
    settings, directory = opened.run.settings, opened.run.directory
    model = settings.model
    arch = f'(arch = "{model.arch}")'
    if not model.has_attention:
        options.exclude("max_distance", "same_length", "attention", because=f"{directory} has no attention {arch}")
    if model.recurrent_state:
        windows = [] if options.protocols else ["attn_len"]  # protocols read a recurrent state in windows, too
        options.exclude("mem_len", "plot", *windows, because=f"{directory} has a recurrent state {arch}")
    if options.same_length and not model.keys_are_tokens:
        raise UsageError(f"{directory} sees all of its memory {arch}; leave out `same_length`")
    if not model.limits_distance:
        options.exclude("max_distance", because=f"{directory}: its encoding of positions has no such limit")
    longest = max(options.mem_lens, default=0)
    settings.check_memory(longest, run=directory, instead="give `attn_len` instead of `mem_len`")
    settings.check_attn_lens(options.windows, subject=directory)
    if options.protocols != PROTOCOLS and (reason := _lacks_recurrence(opened, options)):  # of all, it may lack one
        raise UsageError(f"`protocols` recurrence: {reason}; or leave recurrence out")
    if options.dynamic and opened.precision == "fp16":
        raise UsageError("`dynamic` trains the model, which fp16 is too coarse for; add `precision` bf16 or fp32")


def _common_facts(scoring: Scoring, options: EvalOptions) -> dict[str, str]:
    """Return what must be the same in all processes of an evaluation, by name."""
    opened, user_text = scoring.opened, options.text
    digest = scoring.text.digest if user_text is None else hashlib.sha256(user_text.data).hexdigest()
    compared = {key: value for key, value in vars(options).items() if key not in ("text", "losses", "html", "plot")}
    return {
        "the release of txl": __version__,
        **recipe.facts(opened.run.settings),
        **{f"`{name}`": str(value) for name, value in compared.items()},
        "the precision": opened.precision,
        "the checkpoint": opened.checkpoint.fingerprint(),
        "the text (SHA-256)": str(digest),
    }


def _record(result: EvalResult) -> None:
    """Append the rows to the run's evals.jsonl; if that cannot be written, say so and continue."""
    run, text = result.scoring.opened.run, result.scoring.text
    facts = result.to_json() | {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "weights": run.best_or_last.name,
        "corpus": text.corpus,
        "split": text.split,
        "whole": text.whole,
    }
    rows = [{key: value for key, value in (facts | row).items() if key not in NOT_RECORDED} for row in facts["rows"]]
    try:
        history.record(run, rows)
    except OSError as error:
        path = run.directory / run_directory.EVALS
        result.scoring.reporter.say(
            f"{path}: result not recorded ({error.strerror}); check that the run's folder is writable"
        )


def write_losses(path: Path, result: EvalResult) -> None:
    """Write the loss of every token of the text to an HDF5 file."""
    scoring, run = result.scoring, result.scoring.opened.run
    shared = result.to_json()
    facts = {key: shared[key] for key in ("run", "step", "text", "precision", "max_distance")}
    facts |= {"split": scoring.text.split, "vocab_fingerprint": run.vocab_fingerprint}
    facts["store"] = run.settings.corpus.store if scoring.text.split else None
    losses = []
    for row in result.rows:
        if row.attn_len:
            losses.append(TokenLosses("attn_len", row.attn_len, row.losses_nats, {"stride": row.stride}))
        else:
            settings = {"seg_len": shared["seg_len"], "lanes": row.lanes, "same_length": shared["same_length"]}
            losses.append(TokenLosses("mem_len", row.mem_len, row.losses_nats, settings))
    loss_file.write(path, scoring.text.targets, losses, facts)
    scoring.reporter.say(f"the loss of {len(scoring.text.targets):,} tokens written to {path}")
