"""Describes training runs: each by itself, and several side by side with their curves."""

import dataclasses
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.errors import TxlError, UsageError
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.runs.run_directory import Change, Origin, Run
from txlcli.workflows.reporter import Reporter


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
    """As `History.state`, or damaged."""
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
    test_readings: int | None = None
    """Number of test results that `test` is the best of."""
    bits_per_byte: float | None = None
    """Of the test result."""
    origin: Origin | None = None
    """Weights of another run that it began with."""
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class SeedGroup:
    """Runs that differ in their seed only."""

    runs: tuple[str, ...]
    losses: dict[str, tuple[float, float]]
    """Mean and standard deviation (n - 1) of the best valid and the test loss, in the metric of the runs."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    runs: tuple[RunSummary, ...]
    settings: dict[str, list[Any]]
    """Values of the settings that differ, by full name."""
    same_text: bool
    """True if all runs have the same text and vocabulary, so that losses can be compared."""
    seeds: tuple[SeedGroup, ...]


def describe(directory: Path, reporter: Reporter) -> RunSummary:
    """Describe a run; a damaged one is reported, and does not hide others."""
    try:
        return summarize(history.read(run_directory.open_run(directory)))
    except TxlError as error:
        reporter.say(str(error))
        return RunSummary(name=directory.name, folder=str(directory), saved=_saved(directory))


def summarize(past: History) -> RunSummary:
    """Return the state and the results of a run."""
    run, train, best = past.run, past.run.settings.train, past.best_valid or {}
    test, trials = past.test_result
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
        max_steps=train.max_steps if past.state != "imported" else None,
        best_valid=past.in_metric(past.best_valid),
        best_valid_step=best.get("step"),
        valid_tokens=train.valid_tokens if best.get("tokens") == train.valid_tokens else None,
        last_valid=past.in_metric(past.last("valid")),
        last_train=past.in_metric(past.last("train")),
        tokens_per_s=past.tokens_per_s,
        test=past.in_metric(test),
        test_mem_len=test.get("mem_len") if test else None,
        test_readings=trials or None,
        bits_per_byte=test.get("bits_per_byte") if test else None,
        origin=run.origin,
        changes=run.changes,
    )


def _saved(directory: Path) -> str:
    return datetime.fromtimestamp(run_directory.last_written(directory)).astimezone().isoformat(timespec="seconds")


def compare(histories: Sequence[History]) -> Comparison:
    """Compare two or more runs."""
    if len(histories) < 2:
        raise UsageError('compare needs two or more runs; "txl runs" lists all')
    runs, summaries = [past.run for past in histories], tuple(map(summarize, histories))
    return Comparison(
        runs=summaries,
        settings=recipe.differences([recipe.to_table(run.settings) for run in runs]),
        same_text=len({(run.settings.corpus.store, run.vocab_fingerprint) for run in runs}) == 1,
        seeds=tuple(_seed_groups(runs, summaries)),
    )


def _seed_groups(runs: Sequence[Run], summaries: Sequence[RunSummary]) -> Iterator[SeedGroup]:
    groups: dict[object, dict[int, RunSummary]] = {}
    for run, summary in zip(runs, summaries, strict=True):
        train = dataclasses.replace(run.settings.train, seed=0)
        settings = dataclasses.replace(run.settings, train=train, log=runs[0].settings.log)
        by_seed = groups.setdefault((settings, run.vocab_fingerprint, run.origin), {})
        by_seed.setdefault(run.settings.train.seed, summary)  # repetitions of a seed are not counted
    for group in map(dict.values, groups.values()):
        columns = {"valid": [run.best_valid for run in group], "test": [run.test for run in group]}
        spread = {
            split: (statistics.mean(losses), statistics.stdev(losses))
            for split, column in columns.items()
            if len(losses := [loss for loss in column if loss is not None]) == len(group) > 1
        }
        if spread:
            yield SeedGroup(runs=tuple(run.name for run in group), losses=spread)
