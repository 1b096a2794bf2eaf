"""Sums up the state and the results of a run, and compares several runs."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.errors import MissingPackageError, TxlError, UsageError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.history import History, describe_setting
from txlcli.runs.run_directory import Change, Origin


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
    """Runs that differ in their seed only: all finished, or stopped at one step."""

    runs: tuple[str, ...]
    losses: dict[str, tuple[float, float]]
    """Mean and standard deviation (n - 1) of the best valid and the test loss, in the metric of the runs."""
    test_settings: tuple[str, ...]
    """Different settings of the test results, see `RunSummary.test_setting`; losses with one can be averaged."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Several runs side by side."""

    runs: tuple[RunSummary, ...]
    labels: tuple[str, ...]
    """Distinct short names of the runs."""
    settings: dict[str, list[Any]]
    """Values of the settings that differ, by full name."""
    same_text: bool
    """True if all runs have the same text and vocabulary, so that losses can be compared."""
    seeds: tuple[SeedGroup, ...]


def describe(directory: Path, say: Callable[[str], None]) -> RunSummary:
    """Describe a run; a damaged one is reported, and does not hide others."""
    try:
        return summarize(history.read(run_directory.read_run(directory)))
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
    texts = [past.text_digest for past in histories]  # a store may have been prepared again with another text
    if not all(texts):
        texts = [run.settings.corpus.store for run in runs]
    vocabularies = {run.vocab_fingerprint for run in runs}
    labels = run_directory.short_names([run.subject for run in runs])
    return Comparison(
        runs=summaries,
        labels=tuple(labels),
        settings=recipe.differences([recipe.to_table(run.settings) for run in runs]),
        same_text=len(set(texts)) == len(vocabularies) == 1,
        seeds=tuple(_seed_groups(histories, summaries, labels)),
    )


def _seed_groups(
    histories: Sequence[History], summaries: Sequence[RunSummary], labels: Sequence[str]
) -> Iterator[SeedGroup]:
    groups: dict[object, dict[int, tuple[str, RunSummary]]] = {}
    for past, summary, label in zip(histories, summaries, labels, strict=True):
        run = past.run
        settings = run.settings.with_train(seed=0).without_log()
        step = None if summary.state == "finished" else summary.step  # stop_after ends seeds at different steps
        by_seed = groups.setdefault((settings, run.vocab_fingerprint, past.text_digest, run.origin, step), {})
        by_seed.setdefault(run.settings.train.seed, (label, summary))  # repetitions of a seed are not counted
    for by_seed in groups.values():
        if len(by_seed) < 2:
            continue
        names, group = zip(*by_seed.values(), strict=True)
        columns = {"valid": [run.best_valid for run in group], "test": [run.test for run in group]}
        losses = {}
        for split, column in columns.items():
            known = [loss for loss in column if loss is not None]
            if len(known) == len(group):
                losses[split] = (statistics.mean(known), statistics.stdev(known))
        if losses:
            settings_of_test = dict.fromkeys(run.test_setting for run in group if run.test_setting)
            yield SeedGroup(runs=names, losses=losses, test_settings=tuple(settings_of_test))
