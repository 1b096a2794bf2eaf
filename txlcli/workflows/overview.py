"""Describes training runs: each by itself, and several side by side with their curves."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import RunError, TxlError, UsageError, listed
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.runs.run_directory import Change, Origin, Run
from txlcli.workflows.options import Axis, CompareOptions
from txlcli.workflows.reporter import Reporter

Curve = tuple[list[float], list[float]]
"""Coordinates x and y."""


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """State and results of a run, with losses in its metric; None for what it does not have."""

    name: str
    folder: str
    recipe: str | None = None
    parameters: int | None = None
    metric: str | None = None
    """bpc or ppl."""
    state: str = "damaged"
    """One of `history.STATES`, or damaged."""
    step: int | None = None
    best_valid: float | None = None
    best_valid_step: int | None = None
    test: float | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the entry of the run that `--json` prints."""
        entry: dict[str, Any] = metrics.without_infinities(dataclasses.asdict(self))
        return entry


@dataclass(frozen=True, kw_only=True)
class RunEntry(RunSummary):
    """A run in a list."""

    saved: str
    """Local time of the last checkpoint, ISO 8601."""
    store: str | None = None
    max_steps: int | None = None
    valid_tokens: int | None = None
    """Tokens of the valid split that were scored, if they are not all."""
    test_mem_len: int | None = None
    test_readings: int | None = None
    """Number of test results that `test` is the best of."""
    origin: Origin | None = None
    """Weights of another run that it began with."""

    def to_json(self) -> dict[str, Any]:
        entry = super().to_json()
        return {key: value for key, value in entry.items() if value is not None or key != "origin"}


@dataclass(frozen=True, kw_only=True)
class ComparedRun(RunSummary):
    """A run next to others."""

    last_valid: float | None
    last_train: float | None
    tokens_per_s: float | None
    bits_per_byte: float | None
    """Of the test result."""
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seed only."""

    runs: tuple[str, ...]
    losses: dict[str, tuple[float, float]]
    """Mean and standard deviation (n - 1) of the best valid and the test loss, in the metric of the runs."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    runs: tuple[ComparedRun, ...]
    settings: dict[str, list[Any]]
    """Values of the settings that differ, by full name."""
    same_text: bool
    """True if all runs have the same text and vocabulary, so that losses can be compared."""
    stores: tuple[str, ...]
    """Names of the texts."""
    seeds: tuple[SeedGroup, ...]
    curves: dict[tuple[str, str], Curve]
    """Curves of every run, by run and split; empty without a plot."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl runs compare --json` prints."""
        settings = metrics.without_infinities(self.settings)
        seeds = [dataclasses.asdict(group) for group in self.seeds]
        runs = [run.to_json() for run in self.runs]
        return {"runs": runs, "settings": settings, "same_text": self.same_text, "seeds": seeds}


def describe(directory: Path, reporter: Reporter) -> RunEntry:
    """Describe a run; a damaged one is reported, and does not hide others."""
    written = datetime.fromtimestamp(run_directory.last_written(directory))
    saved = written.astimezone().isoformat(timespec="seconds")
    try:
        past = history.read(run_directory.open_run(directory))
        summary = _summary(past)
    except TxlError as error:
        reporter.say(str(error))
        return RunEntry(name=directory.name, folder=str(directory), saved=saved)
    settings, (test, trials) = past.run.settings, past.test_result
    valid_tokens, scored = settings.train.valid_tokens, (past.best_valid or {}).get("tokens")
    return RunEntry(
        **vars(summary),
        saved=saved,
        store=settings.corpus.store,
        max_steps=settings.train.max_steps if past.state != "imported" else None,
        valid_tokens=valid_tokens if scored == valid_tokens else None,
        test_mem_len=test.get("mem_len") if test else None,
        test_readings=trials if test else None,
        origin=past.run.origin,
    )


def _summary(past: History) -> RunSummary:
    return RunSummary(
        name=past.run.name,
        folder=str(past.run.directory),
        recipe=past.run.recipe_name,
        parameters=past.run.parameters,
        metric=past.run.metric,
        state=past.state,
        step=past.step,
        best_valid=past.in_metric(past.best_valid),
        best_valid_step=past.best_valid["step"] if past.best_valid else None,
        test=past.in_metric(past.test_result[0]),
    )


def compare(run_names: Sequence[str], options: CompareOptions, runs_dir: Path) -> Comparison:
    """Compare two or more runs."""
    runs = run_directory.find_each(run_names, runs_dir)
    if len(runs) < 2:
        known = listed(run_directory.names(runs_dir))
        raise UsageError(f"compare needs two or more runs, not {len(runs)}; add others (known: {known})")
    histories = [history.read(run) for run in runs]
    compared = tuple(
        ComparedRun(
            **vars(_summary(past)),
            last_valid=past.in_metric(past.last_valid),
            last_train=past.in_metric(past.last_train),
            tokens_per_s=past.tokens_per_s,
            bits_per_byte=(past.test_result[0] or {}).get("bits_per_byte"),
            changes=past.run.changes,
        )
        for past in histories
    )
    return Comparison(
        runs=compared,
        settings=recipe.differences([recipe.to_table(run.settings) for run in runs]),
        same_text=len({(run.settings.corpus.store, run.vocab_fingerprint) for run in runs}) == 1,
        stores=tuple(dict.fromkeys(run.settings.corpus.store for run in runs)),
        seeds=tuple(_seed_groups(runs, compared)),
        curves=curves(histories, options.x) if options.plot is not None else {},
    )


def _seed_groups(runs: Sequence[Run], compared: Sequence[ComparedRun]) -> Iterator[SeedGroup]:
    groups: dict[tuple[Settings, str, Origin | None], dict[int, ComparedRun]] = {}
    for run, summary in zip(runs, compared, strict=True):
        train = dataclasses.replace(run.settings.train, seed=0)
        settings = dataclasses.replace(run.settings, train=train, log=runs[0].settings.log)
        by_seed = groups.setdefault((settings, run.vocab_fingerprint, run.origin), {})
        by_seed.setdefault(run.settings.train.seed, summary)  # repetitions of a seed are not counted
    for by_seed in groups.values():
        group = [*by_seed.values()]
        losses = {
            "valid": [run.best_valid for run in group if run.best_valid is not None],
            "test": [run.test for run in group if run.test is not None],
        }
        complete = {split: values for split, values in losses.items() if len(values) == len(group) > 1}
        if complete:
            spread = {split: (statistics.mean(values), statistics.stdev(values)) for split, values in complete.items()}
            yield SeedGroup(runs=tuple(run.name for run in group), losses=spread)


def curves(histories: Sequence[History], x: Axis) -> dict[tuple[str, str], Curve]:
    """Return the losses of runs of one metric, by run and split."""
    by_metric = {past.run.metric: past.run.name for past in histories}
    if len(by_metric) > 1:
        runs = ", ".join(f"{name} in {metric}" for metric, name in by_metric.items())
        raise UsageError(f"`plot` needs one metric, but these runs have two ({runs}); compare runs of one metric")
    names = run_directory.short_names([past.run.directory for past in histories])
    by_split = {}
    for name, past in zip(names, histories, strict=True):
        if not past.reports:
            raise RunError(
                f"{past.run.directory} has no training reports in {run_directory.METRICS}; leave it out of `plot`"
            )
        points = list(zip(x_coordinates(past, x), past.reports, strict=True))
        for split in ("train", "valid"):
            of_split = [(at, report) for at, report in points if report["kind"] == split]
            losses = [metrics.in_metric(report["loss_nats"], past.run.metric) for _, report in of_split]
            by_split[name, split] = ([at for at, _ in of_split], losses)
    return by_split


def x_coordinates(past: History, x: Axis) -> list[float]:
    """Return the x coordinate of each report."""
    if x == "hours":
        hours = past.hours()
        if hours is None:
            raise RunError(
                f"{past.run.directory / run_directory.METRICS} has no durations; use `x` steps or `x` tokens"
            )
        return hours
    scale = past.tokens_per_step if x == "tokens" else 1
    return [float(report["step"] * scale) for report in past.reports]
