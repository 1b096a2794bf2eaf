"""`txl runs compare`: runs side by side, their curves in one figure."""

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from txlcli import console
from txlcli.config import recipe
from txlcli.errors import RunError, UsageError, listed
from txlcli.options import RUNS_DIR, Json, Plot, RunsDir
from txlcli.paper import metrics
from txlcli.runs import history, run_folder
from txlcli.runs.history import History

SAME_SETTINGS = "The settings are the same."
OTHER_TEXTS = "Other texts or vocabularies: these losses cannot be compared."


class Axis(StrEnum):
    """What a curve is drawn against."""

    steps = "steps"
    tokens = "tokens"
    hours = "hours"


def compare(
    run_names: Annotated[
        list[str] | None, typer.Argument(metavar="RUN RUN...", help="Two runs or more, by name or folder.")
    ] = None,
    plot: Plot = None,
    x: Annotated[Axis, typer.Option("--x", help="What the curves of --plot are drawn against.")] = Axis.steps,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Set runs side by side.

    Shows the settings that differ, best and last losses, tokens per second, parameters.
    --plot draws their training and validation curves.

    Example: txl runs compare stdlib stdlib-2 --plot curves.png
    """
    from txlcli.views import plots

    if plot is not None:
        plots.check_path(plot)
    elif x is not Axis.steps:
        raise UsageError(f"--x {x.value} goes with --plot FILE: it says what the curves are drawn against")
    histories = [history.read(run) for run in _chosen(run_names or [], runs_dir)]
    curves = _curves(histories, x) if plot is not None else {}
    result = _result(histories)
    if json:
        console.show_json(metrics.without_infinities(result))
    else:
        _show(result)
    if plot is not None:
        _draw(plot, histories, curves, x)


def _chosen(run_names: Sequence[str], runs_dir: Path) -> list[run_folder.Run]:
    """The runs that are named, two or more, each once."""
    chosen = run_folder.find_each(run_names, runs_dir)
    if len(chosen) < 2:
        known = listed(run_folder.names(runs_dir))
        raise UsageError(f"compare takes two runs or more, not {len(chosen)}; name others (known: {known})")
    return chosen


def _result(histories: Sequence[History]) -> dict[str, Any]:
    """The object that --json prints, and that the table is made of."""
    return {
        "runs": [_facts(one) for one in histories],
        "settings": recipe.differences([recipe.to_table(one.run.settings) for one in histories]),
        "same_text": len({(one.run.settings.corpus.store, one.run.vocab_fingerprint) for one in histories}) == 1,
    }


def _facts(run_history: History) -> dict[str, Any]:
    run = run_history.run

    def loss(report: dict[str, Any] | None) -> float | None:
        return (
            metrics.in_metric(report["loss_nats"], run.metric) if report and report["loss_nats"] is not None else None
        )

    return {
        "name": run.name,
        "folder": str(run.folder),
        "recipe": run.recipe_name,
        "metric": run.metric,
        "parameters": run.parameters,
        "state": run_history.state,
        "step": run_history.step,
        "best_valid": loss(run_history.best_valid),
        "best_valid_step": run_history.best_valid["step"] if run_history.best_valid else None,
        "last_valid": loss(run_history.last_valid),
        "last_train": loss(run_history.last_train),
        "test": loss(run_history.test_result[0]),
        "tokens_per_s": run_history.tokens_per_s,
        "changes": [dataclasses.asdict(change) for change in run.changes],
    }


def _show(result: dict[str, Any]) -> None:
    facts = result["runs"]
    metric = facts[0]["metric"] if len({one["metric"] for one in facts}) == 1 else None

    def losses(key: str) -> list[str]:
        units = ["" if metric else f" {one['metric']}" for one in facts]
        return [
            "-" if one[key] is None else f"{metrics.format_measure(one[key])}{unit}"
            for one, unit in zip(facts, units, strict=True)
        ]

    def counts(key: str) -> list[str]:
        return ["-" if one[key] is None else f"{one[key]:,.0f}" for one in facts]

    named = f" {metric}" if metric else ""
    rows = [
        ["recipe", *(one["recipe"] for one in facts)],
        ["parameters", *counts("parameters")],
        ["state", *(one["state"] for one in facts)],
        ["step", *counts("step")],
        [f"best valid{named}", *losses("best_valid")],
        ["  at step", *counts("best_valid_step")],
        [f"last valid{named}", *losses("last_valid")],
        [f"last train{named}", *losses("last_train")],
        [f"test{named}", *losses("test")],
        ["tokens/s", *counts("tokens_per_s")],
        *([name, *map(recipe.format_value, values)] for name, values in result["settings"].items()),
    ]
    changed = any(one["changes"] for one in facts)
    if changed:
        rows.append(["changed on the way", *("\n".join(map(_lines_of, one["changes"])) or "-" for one in facts)])
    said = []
    if not result["settings"]:
        said.append("The settings are the same now; a run had others on the way." if changed else SAME_SETTINGS)
    said += [] if result["same_text"] else [OTHER_TEXTS]
    console.show_table("runs compared", ["", *(one["name"] for one in facts)], rows, "\n".join(said))


def _lines_of(change: dict[str, Any]) -> str:
    """What a run went on with, and after which step."""
    told = (
        f"{name} {recipe.format_value(new)} (was {recipe.format_value(old)})"
        for name, (old, new) in change["settings"].items()
    )
    return "\n".join((f"after {change['step']:,}:", *told))


def _curves(histories: Sequence[History], x: Axis) -> dict[tuple[str, str], tuple[list[float], list[float]]]:
    """The curves of every run, by its name and their kind.

    Raises:
        UsageError: the runs have different metrics.
        RunError: a run has no reports, or they do not say how long they took.
    """
    measured = {one.run.metric: one.run.name for one in histories}
    if len(measured) > 1:
        said = ", ".join(f"{name} in {metric}" for metric, name in measured.items())
        raise UsageError(f"--plot draws one metric, these runs have two ({said}); compare runs of one")
    curves = {}
    for name, one in zip(run_folder.short_names([one.run.folder for one in histories]), histories, strict=True):
        if not one.reports:
            raise RunError(
                f"{one.run.folder} has no reports of a training in {run_folder.METRICS}; leave it out of --plot"
            )
        coordinates = _coordinates(one, x)
        for kind in ("train", "valid"):
            points = [
                (at, report) for at, report in zip(coordinates, one.reports, strict=True) if report["kind"] == kind
            ]
            losses = [float("nan") if report["loss_nats"] is None else report["loss_nats"] for _, report in points]
            curves[name, kind] = (
                [at for at, _ in points],
                [metrics.in_metric(loss, one.run.metric) for loss in losses],
            )
    return curves


def _coordinates(run_history: History, x: Axis) -> list[float]:
    """Where each report lies on the axis."""
    if x is Axis.hours:
        hours = run_history.hours()
        if hours is None:
            raise RunError(
                f"{run_history.run.folder / run_folder.METRICS} does not say how long it took; take --x steps or tokens"
            )
        return hours
    scale = run_history.tokens_per_step if x is Axis.tokens else 1
    return [float(report["step"] * scale) for report in run_history.reports]


def _draw(
    path: Path, histories: Sequence[History], curves: dict[tuple[str, str], tuple[list[float], list[float]]], x: Axis
) -> None:
    from txlcli.views import plots

    metric = histories[0].run.metric
    colours = {
        name: f"C{number}" for number, name in enumerate(run_folder.short_names([one.run.folder for one in histories]))
    }
    styles = {}
    for name, kind in curves:
        style = {"marker": "", "linewidth": 1.0, "alpha": 0.45} if kind == "train" else {"markersize": 4.0}
        styles[f"{name}, {kind}"] = {"color": colours[name], **style}
    stores = list(dict.fromkeys(one.run.settings.corpus.store for one in histories))
    plots.draw_curves(
        path,
        {f"{name}, {kind}": curve for (name, kind), curve in curves.items()},
        x_label=x.value,
        y_label=metrics.METRIC_TITLES[metric],
        title=", ".join(stores),
        log_y=metric == "ppl",
        styles=styles,
    )
    console.say(f"drawn to {path}")
