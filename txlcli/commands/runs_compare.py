"""`txl runs compare`: runs side by side, with their curves in one figure."""

import dataclasses
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import RUNS_DIR, Json, Plot, RunsDir
from txlcli.config import recipe
from txlcli.errors import RunError, UsageError, listed
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.views import run_tables

Axis = Literal["steps", "tokens", "hours"]
"""Quantity on the x axis."""


def compare(
    run_names: Annotated[
        list[str] | None,
        Argument(metavar="RUN RUN...", help="Two or more runs, by name or folder.", autocompletion=completion.runs),
    ] = None,
    plot: Plot = None,
    x: Annotated[Axis, Option(help="Quantity on the x axis of --plot.")] = "steps",
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Compare runs side by side.

    Shows differing settings, best and last losses, tokens per second and parameters.
    --plot plots the training and validation curves.

    Example: txl runs compare stdlib stdlib-2 --plot curves.png
    """
    if plot is None and x != "steps":
        raise UsageError(f"--x {x} is the x axis of --plot; add --plot FILE, or leave it out")
    runs = run_directory.find_each(run_names or [], runs_dir)
    if len(runs) < 2:
        known = listed(run_directory.names(runs_dir))
        raise UsageError(f"compare needs two or more runs, not {len(runs)}; add others (known: {known})")
    histories = [history.read(run) for run in runs]
    curves = _curves(histories, x) if plot is not None else {}  # may raise, so before the table is shown
    result = {
        "runs": [_facts(past) for past in histories],
        "settings": recipe.differences([recipe.to_table(run.settings) for run in runs]),
        "same_text": len({(run.settings.corpus.store, run.vocab_fingerprint) for run in runs}) == 1,
    }
    if json:
        console.show_json(metrics.without_infinities(result))
    else:
        run_tables.show_comparison(result)
    if plot is not None:
        run_tables.plot_curves(
            plot,
            curves,
            metric=histories[0].run.metric,
            x_label=x,
            stores=list(dict.fromkeys(run.settings.corpus.store for run in runs)),
        )


def _facts(past: History) -> dict[str, Any]:
    return {
        "name": past.run.name,
        "folder": str(past.run.directory),
        **past.summary(),
        "last_valid": past.in_metric(past.last_valid),
        "last_train": past.in_metric(past.last_train),
        "tokens_per_s": past.tokens_per_s,
        "changes": [dataclasses.asdict(change) for change in past.run.changes],
    }


def _curves(histories: Sequence[History], x: Axis) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """Return the curves of every run, by run and split.

    Raises:
        UsageError: the runs have different metrics.
        RunError: a run has no reports, or reports without durations.
    """
    by_metric = {past.run.metric: past.run.name for past in histories}
    if len(by_metric) > 1:
        runs = ", ".join(f"{name} in {metric}" for metric, name in by_metric.items())
        raise UsageError(f"--plot needs one metric, but these runs have two ({runs}); compare runs of one metric")
    curves = {}
    for name, past in zip(
        run_directory.short_names([past.run.directory for past in histories]), histories, strict=True
    ):
        if not past.reports:
            raise RunError(
                f"{past.run.directory} has no training reports in {run_directory.METRICS}; leave it out of --plot"
            )
        coordinates = x_coordinates(past, x)
        for kind in ("train", "valid"):
            points = [
                (at, report) for at, report in zip(coordinates, past.reports, strict=True) if report["kind"] == kind
            ]
            losses = [float("nan") if report["loss_nats"] is None else report["loss_nats"] for _, report in points]
            curves[name, kind] = (
                [at for at, _ in points],
                [metrics.in_metric(loss, past.run.metric) for loss in losses],
            )
    return curves


def x_coordinates(run_history: History, x: Axis) -> list[float]:
    """Return the x coordinate of each report."""
    if x == "hours":
        hours = run_history.hours()
        if hours is None:
            raise RunError(
                f"{run_history.run.directory / run_directory.METRICS} has no durations; use --x steps or --x tokens"
            )
        return hours
    scale = run_history.tokens_per_step if x == "tokens" else 1
    return [float(report["step"] * scale) for report in run_history.reports]
