"""Reads the history of a run: its reports, its evaluations, the saved step; sums it up, and compares several runs."""

import itertools
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.saved_state import check_state
from txlcli.errors import MissingPackageError, RunError, TxlError, UsageError
from txlcli.paper import metrics
from txlcli.runs import log_file, run_directory
from txlcli.runs.log_file import Record
from txlcli.runs.run_directory import Change, Origin, Run
from txlcli.system.checkpoint_header import read_state

MODEL_ALONE = "model"  # method of an evaluation without a cache and without dynamic evaluation


@dataclass(frozen=True)
class History:
    """The recorded course of one run."""

    run: Run
    reports: tuple[Record, ...]
    """Lines of metrics.jsonl, in order."""
    evals: tuple[Record, ...]
    """Lines of evals.jsonl, in order."""
    saved: Record
    """Metadata of the last checkpoint, or of the best one if there is no last one; empty without a checkpoint."""
    evaluated_step: int | None
    """Step of the weights that `txl eval` would read now; None if there are none."""

    def reports_of(self, kind: str) -> list[Record]:
        """Return the reports of a kind, "train" or "valid"."""
        return [report for report in self.reports if report["kind"] == kind]

    @property
    def step(self) -> int:
        """Step that is saved; without a checkpoint, the step of the last report."""
        return int(self.saved.get("step", self.last_step))

    @property
    def last_step(self) -> int:
        """Step of the last report."""
        return max((int(report["step"]) for report in self.reports), default=0)

    @property
    def state(self) -> str:
        """finished, unfinished, imported, or interrupted, as a killed run; one in progress looks like it."""
        if "imported_from" in self.saved:
            return "imported"
        if not self.saved or self.last_step > self.step:
            return "interrupted"
        ended = self.run.settings.train.ends_after(self.step, int(self.saved.get("stale", 0)))
        # Training can be stopped between the last step and its validation, which resuming makes up for.
        if ended and self.saved.get("validated") == self.step:
            return "finished"
        return "unfinished"

    @cached_property
    def best_valid(self) -> Record | None:
        """Validation with the lowest loss."""
        return lowest(self.reports_of("valid"))

    @cached_property
    def missing_reports(self) -> str | None:
        """Contradiction in metrics.jsonl, or with the last checkpoint, if lines were lost; None if there is none."""
        last = max((report["step"] for report in self.reports_of("train")), default=0)
        reported = self.saved.get("step", 0) - self.run.settings.log.every + 1  # for checkpoints of earlier versions
        lacks_steps = last < self.saved.get("interval", {}).get("after", reported)
        best_nats = self.saved.get("best_nats")
        lacks_best = False
        if best_nats is not None:
            lacks_best = self.best_valid is None or self.best_valid["loss_nats"] > best_nats
        if not (lacks_steps or lacks_best or self._has_gap("train") or self._has_gap("valid")):
            return None
        return f"{run_directory.METRICS} has lost reports; the checkpoint is of step {self.step:,}"

    def _has_gap(self, kind: str) -> bool:
        """True if a report of a kind continues one that is missing; those of earlier versions do not say which."""
        start = {"step": 0, "after": 0}
        reports = [start, *self.reports_of(kind)]
        return any(
            "after" in before and report.get("after", 0) > before["step"]
            for before, report in itertools.pairwise(reports)
        )

    @property
    def best_nats(self) -> float | None:
        """Lowest validation loss, of the reports or, if these are not complete, of the checkpoint."""
        losses = [self.saved.get("best_nats")]
        if self.best_valid is not None:
            losses.append(self.best_valid["loss_nats"])
        return min((loss for loss in losses if loss is not None), default=None)

    def last(self, kind: str) -> Record | None:
        """Return the last report of a kind."""
        return next(reversed(self.reports_of(kind)), None)

    def evals_of(self, split: str) -> list[Record]:
        """Return the evaluations of a whole split by the model alone, with the weights that `txl eval` would read now.

        If the corpus was prepared again, only results on the split that was evaluated last count. Results on text that
        may be training data do not count.
        """
        results = [result for result in self.evals if result.get("split") == split and self._counts(result)]
        if not results:
            return []
        text = results[-1].get("split_sha256")
        return [result for result in results if result.get("split_sha256") == text]

    def is_of_weights(self, result: Record) -> bool:
        """Return True for an evaluation of the weights that `txl eval` would read now."""
        return result.get("step") == self.evaluated_step and result.get("weights") == self.run.best_or_last.name

    def _counts(self, result: Record) -> bool:
        """Return True for an evaluation of a whole split by the model alone, with the weights to evaluate now."""
        return (
            result.get("whole") is True
            and self.is_of_weights(result)
            and result.get("method", MODEL_ALONE) == MODEL_ALONE
            and not result.get("may_be_learned")
            and not result.get("documents")  # each read from an empty memory
        )

    @cached_property
    def test_result(self) -> tuple[Record | None, int]:
        """The test result to quote, and the number of test results that it was chosen from.

        It is the result of the settings that scored best on valid, if test was evaluated with the same settings (the
        count is then 1), otherwise the best result on test. Of several results of the same settings the newest counts.
        """
        on_test = {_settings(result): result for result in self.evals_of("test")}
        on_valid = {_settings(result): result for result in self.evals_of("valid")}
        on_both = on_test.keys() & on_valid.keys()
        if on_both:
            best = min(on_both, key=lambda settings: on_valid[settings]["loss_nats"])
            return on_test[best], 1
        return lowest(on_test.values()), len(on_test)

    def in_metric(self, report: Record | None) -> float | None:
        """Return the loss of a report in the run's metric; None without a report."""
        if report is None:
            return None
        return metrics.in_metric(report["loss_nats"], self.run.metric)

    @property
    def tokens_per_s(self) -> float | None:
        """Tokens per second of training, without validations; None if no report has it."""
        train = self.run.settings.train
        tokens = 0
        seconds = 0.0
        before = 0  # step of the report before
        for report in self.reports_of("train"):
            if report.get("tokens_per_s"):
                averaged = (report["step"] - before) * train.batch_size * train.seg_len
                tokens += averaged
                seconds += averaged / report["tokens_per_s"]
            before = report["step"]
        if not seconds:
            return None
        return tokens / seconds


SETTINGS = (
    "mem_len",
    "seg_len",
    "same_length",
    "attn_len",
    "max_distance",
    "precision",
    "stride",
    "batch_size",
    "temperature",
)
"""Keys of the settings as requested, even if the text was too short for them."""


def _settings(result: Record) -> tuple[object, ...]:
    return tuple(map(result.get, SETTINGS))


def describe_setting(result: Record) -> str:
    """Return the memory or the windows of an evaluation, and what else changes its loss: "M = 64, temperature 1.05"."""
    if result.get("attn_len"):
        described = f"N = {result['attn_len']}"
        if result.get("stride", 1) != 1:
            described += f", S = {result['stride']}"
    elif result.get("attn_len_max", 0) is None:  # no limit
        described = "recurrent state"
    else:
        described = f"M = {result.get('mem_len')}"
    temperature = result.get("temperature", 1)
    if temperature != 1:
        described += f", temperature {temperature:g}"
    if result.get("in_sample"):
        described += ", in-sample"
    return described


def describe_protocol(result: Record) -> str:
    """Return how the text of an evaluation was read, and what else its loss depends on."""
    parts = [describe_setting(result)]
    if not result.get("stride"):
        parts.append(f"L = {result.get('seg_len')}, same_length = {result.get('same_length')}")
        if result.get("documents"):
            parts.append("each document from an empty memory")
        elif result.get("lanes", 1) > 1:
            parts.append(f"{result['lanes']} lanes")
    if result.get("method", MODEL_ALONE) != MODEL_ALONE:
        parts.append(result["method"])
    if not result.get("whole", True):
        parts.append("the first tokens only")
    if result.get("may_be_learned"):
        parts.append("the text may be training data")
    return ", ".join(parts)


def lowest(reports: Iterable[Record]) -> Record | None:
    """Return the report with the lowest loss; None without reports."""
    return min(reports, key=lambda report: report["loss_nats"], default=None)


def read(run: Run) -> History:
    """Read the history of a run."""
    return History(
        run,
        reports=_records(run, run_directory.METRICS),
        evals=_records(run, run_directory.EVALS, skip_truncated=True),
        saved=_metadata(run, run_directory.LAST) or _metadata(run, run_directory.BEST),
        evaluated_step=_metadata(run, run.best_or_last.name).get("step"),
    )


def _metadata(run: Run, name: str) -> Record:
    """Read the metadata of a checkpoint of a run without its tensors; empty if there is no checkpoint."""
    path = run.directory / name
    if not path.exists():
        return {}
    with log_file.reading(path):
        state = read_state(path)
        check_state(state)
    run.check_own(path, [state])
    return state


def _records(run: Run, name: str, *, skip_truncated: bool = False) -> tuple[Record, ...]:
    """Read the records of a file of a run."""
    path = run.directory / name
    records = log_file.read(path, skip_truncated=skip_truncated)
    run.check_own(path, records)
    return records


def check_results(run: Run) -> None:
    """Raise a RunError if evals.jsonl, to which results of this run are appended, is of another one."""
    path = run.directory / run_directory.EVALS
    records: tuple[Record, ...] = ()
    with suppress(RunError):  # a damaged file keeps its lines and those that are appended
        records = log_file.read(path, skip_truncated=True)
    run.check_own(path, records)


def record(run: Run, results: Iterable[Record]) -> None:
    """Append results of an evaluation to evals.jsonl."""
    log_file.append(run.directory / run_directory.EVALS, map(run.signed, results))


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """State and results of a run, with losses in its metric; None for what it does not have."""

    name: str
    folder: str
    saved: str
    """Local time of the last checkpoint, ISO 8601."""
    recipe: str | None = None
    store: str | None = None
    parameters: int | None = None
    metric: str | None = None
    """bpc or ppl."""
    state: str = "damaged"
    """As `History.state`, or damaged; or "needs package", if another package registers a part of it."""
    step: int | None = None
    max_steps: int | None = None
    best_valid: float | None = None
    best_valid_step: int | None = None
    valid_tokens: int | None = None
    """Tokens of the valid split that were scored, if they are not all."""
    last_valid: float | None = None
    last_train: float | None = None
    tokens_per_s: float | None = None
    test: float | None = None
    test_mem_len: int | None = None
    test_setting: str | None = None
    """Setting of the test result, as "M = 64" or "N = 256, S = 8"."""
    test_readings: int | None = None
    """Number of test results that `test` is the best of."""
    bits_per_byte: float | None = None
    """Of the test result."""
    origin: Origin | None = None
    """Weights of another run that it began with."""
    changes: tuple[Change, ...] = ()
    missing_reports: str | None = None
    """See `History.missing_reports`."""


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seed only."""

    runs: tuple[str, ...]
    losses: dict[str, tuple[float, float]]
    """Mean and standard deviation (n - 1) of the best valid and the test loss, in the metric of the runs."""
    test_settings: tuple[str, ...]
    """Different settings of the test results, see `RunSummary.test_setting`; losses with one can be averaged."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    runs: tuple[RunSummary, ...]
    settings: dict[str, list[Any]]
    """Values of the settings that differ, by full name."""
    same_text: bool
    """True if all runs have the same text and vocabulary, so that losses can be compared."""
    seeds: tuple[SeedGroup, ...]


def describe(directory: Path, say: Callable[[str], None]) -> RunSummary:
    """Describe a run; a damaged one is reported, and does not hide others."""
    try:
        return summarize(read(run_directory.read_run(directory)))
    except TxlError as error:
        say(str(error))
        state = "needs package" if isinstance(error, MissingPackageError) else "damaged"
        return RunSummary(name=directory.name, folder=str(directory), saved=_saved(directory), state=state)


def summarize(past: History) -> RunSummary:
    """Return the state and the results of a run."""
    run = past.run
    train = run.settings.train
    best = past.best_valid or {}
    quoted, trials = past.test_result
    test = quoted or {}
    best_valid = None
    if past.best_nats is not None:
        best_valid = metrics.in_metric(past.best_nats, run.metric)
    best_valid_step = None
    if best.get("loss_nats") == past.best_nats:
        best_valid_step = best.get("step")
    valid_tokens = None
    if best.get("tokens") == train.valid_tokens:  # not the whole split
        valid_tokens = train.valid_tokens
    max_steps = None
    if past.state != "imported":
        max_steps = train.max_steps
    return RunSummary(
        name=run.name,
        folder=str(run.directory),
        saved=_saved(run.directory),
        recipe=run.recipe_name,
        store=run.settings.corpus.store,
        parameters=run.parameters,
        metric=run.metric,
        state=past.state,
        step=past.step,
        max_steps=max_steps,
        best_valid=best_valid,
        best_valid_step=best_valid_step,
        valid_tokens=valid_tokens,
        last_valid=past.in_metric(past.last("valid")),
        last_train=past.in_metric(past.last("train")),
        tokens_per_s=past.tokens_per_s,
        test=past.in_metric(quoted),
        test_mem_len=test.get("mem_len"),
        test_setting=describe_setting(quoted) if quoted else None,
        test_readings=trials or None,
        bits_per_byte=test.get("bits_per_byte"),
        origin=run.origin,
        changes=run.changes,
        missing_reports=past.missing_reports,
    )


def _saved(directory: Path) -> str:
    time = datetime.fromtimestamp(run_directory.last_written(directory))
    return time.astimezone().isoformat(timespec="seconds")


def compare(histories: Sequence[History]) -> Comparison:
    """Compare two or more runs."""
    if len(histories) < 2:
        raise UsageError('compare needs two or more runs; "txl runs" lists all')
    runs = [past.run for past in histories]
    summaries = tuple(map(summarize, histories))
    texts = {run.text for run in runs}
    return Comparison(
        runs=summaries,
        settings=recipe.differences([recipe.to_table(run.settings) for run in runs]),
        same_text=len(texts) == 1,
        seeds=tuple(_seed_groups(runs, summaries)),
    )


def _seed_groups(runs: Sequence[Run], summaries: Sequence[RunSummary]) -> Iterator[SeedGroup]:
    groups: dict[object, dict[int, RunSummary]] = {}
    for run, summary in zip(runs, summaries, strict=True):
        settings = run.settings.with_train(seed=0).without_log()
        by_seed = groups.setdefault((settings, run.vocab_fingerprint, run.origin), {})
        by_seed.setdefault(run.settings.train.seed, summary)  # repetitions of a seed are not counted
    for by_seed in groups.values():
        group = list(by_seed.values())
        if len(group) < 2:
            continue
        columns = {"valid": [run.best_valid for run in group], "test": [run.test for run in group]}
        losses = {}
        for split, column in columns.items():
            known = [loss for loss in column if loss is not None]
            if len(known) == len(group):
                losses[split] = (statistics.mean(known), statistics.stdev(known))
        if losses:
            settings_of_test = dict.fromkeys(run.test_setting for run in group if run.test_setting)
            yield SeedGroup(runs=tuple(run.name for run in group), losses=losses, test_settings=tuple(settings_of_test))
