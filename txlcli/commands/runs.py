"""`txl runs`: list, show, compare and plot runs, and test if losses differ."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument

from txlcli import console
from txlcli.commands.options import Json, Run, Runs, with_options
from txlcli.config import recipe
from txlcli.errors import RunError, UsageError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.system.command_lines import RUNS_DIR, default_runs_dir
from txlcli.workflows import overview
from txlcli.workflows.options import PlotOptions
from txlcli.workflows.overview import Comparison, SeedGroup
from txlcli.workflows.workspace import RunsDir

if TYPE_CHECKING:
    from txlcli.workflows.difference import LossDifference

LIST_COLUMNS = ("name", "state", "step", "best_valid", "test", "metric", "saved")
LIST_NOTE = "best valid: in training; test: best score. Details: txl runs show RUN"
SAME_SETTINGS = "The settings are the same."
OTHER_TEXTS = "The texts or vocabularies differ: these losses cannot be compared."
OF_ONE_RUN = ("name", "folder", "saved")
"""Fields that runs are not compared by."""
STYLES: dict[str, dict[str, Any]] = {
    "train": {"marker": "", "linewidth": 1.0, "alpha": 0.45},
    "valid": {"markersize": 4.0},
}
"""Curves of a run by split."""
CURVES = "curves.png"
"""Figure of `txl runs plot` in the folder of a run."""

app = typer.Typer(invoke_without_command=True, add_completion=False, suggest_commands=False, rich_markup_mode=None)


@app.callback()
@with_options
def runs_(context: typer.Context, where: RunsDir, json: Json = False) -> None:
    """List or compare runs.

    Without a subcommand, lists the runs, the most recent first.

    Example: txl runs
    """
    if context.invoked_subcommand is None:
        list_(where, json)
    elif json or where.runs_dir not in (RUNS_DIR, default_runs_dir()):
        option = "--json" if json else "--runs-dir"
        raise UsageError(f"{option} must come last: txl runs {context.invoked_subcommand} ... {option}")


@app.command("list")
def list_(where: RunsDir, json: Json = False) -> None:
    """List the training runs, as "txl runs" does.

    Example: txl runs list --json
    """
    directories = run_directory.newest_first(where.runs_dir)
    if not directories:
        raise RunError(f'no run under {where.runs_dir}; run "txl train stdlib" first, or give another --runs-dir')
    entries = [overview.describe(directory, console.TerminalReporter()) for directory in directories]
    if json:
        console.show_json({"runs_dir": str(where.runs_dir), "runs": entries})
        return
    console.show_rows(f"runs in {where.runs_dir}", list(map(vars, entries)), LIST_COLUMNS, [LIST_NOTE])


@app.command("show")
def show(where: RunsDir, run_name: Run = None, json: Json = False) -> None:
    """Show a run: its progress, results and settings.

    Settings with their default value are left out.

    Example: txl runs show stdlib
    """
    run = run_directory.find(run_name, where.runs_dir)
    entry = overview.summarize(history.read(run))
    if json:
        console.show_json({**vars(entry), "settings": recipe.to_table(run.settings)})
        return
    notes = []
    if (entry.test_readings or 1) > 1:
        notes.append(f"test: the best of {entry.test_readings} scores, since valid was not evaluated")
    if entry.state in ("unfinished", "interrupted"):
        notes.append(f"to continue: {shlex.join(['txl', 'train', '--resume', entry.name])}")
    facts = [*console.facts_of(entry), *console.facts_of(settings_of(run))]
    console.show_table(f"run {entry.name}", ("", ""), facts, notes)


def settings_of(run: run_directory.Run) -> dict[str, str]:
    """Return the settings of a run that are not the default, by name."""
    return {key: recipe.format_value(value) for key, value in recipe.changed_keys(run.settings).items()}


@app.command("compare")
def compare(options: PlotOptions, where: RunsDir, run_names: Runs = None, json: Json = False) -> None:
    """Compare two or more runs side by side.

    Shows differing settings, best and last losses, tokens per second and parameters.
    --plot plots the training and validation curves.

    Example: txl runs compare stdlib stdlib-2 --plot curves.png
    """
    histories = [history.read(run) for run in run_directory.find_each(run_names or [], where.runs_dir)]
    result = overview.compare(histories)
    if options.plot is not None:
        plot_curves(options.plot, histories)
    console.show_result(result, _show_comparison, json=json)


@app.command("plot")
def plot(options: PlotOptions, where: RunsDir, run_names: Runs = None) -> None:
    """Plot the training and validation curves of runs.

    Without RUN, plots the most recent one. Writes curves.png into the folder of the first run, unless --plot names
    another file.

    Example: txl runs plot stdlib
    """
    runs = (
        run_directory.find_each(run_names, where.runs_dir) if run_names else [run_directory.find(None, where.runs_dir)]
    )
    plot_curves(options.plot or runs[0].directory / CURVES, [history.read(run) for run in runs])


def _show_comparison(result: Comparison) -> None:
    facts = [dict(console.facts_of(run)) for run in result.runs]
    names = [name.replace("_", " ") for name in vars(result.runs[0]) if name not in OF_ONE_RUN]
    rows = [[name, *(run.get(name, "-") for run in facts)] for name in names if any(name in run for run in facts)]
    rows += [[name, *map(recipe.format_value, values)] for name, values in result.settings.items()]
    notes = [] if result.settings else [SAME_SETTINGS]
    notes += [] if result.same_text else [OTHER_TEXTS]
    notes += map(_describe_seeds, result.seeds)
    console.show_table("runs compared", ["", *(run.name for run in result.runs)], rows, notes)


def _describe_seeds(group: SeedGroup) -> str:
    """Return mean and standard deviation of the losses of runs that differ in their seed."""
    spread = [
        f"{split} {metrics.format_measure(mean)} +- {metrics.format_measure(deviation)}"
        for split, (mean, deviation) in group.losses.items()
    ]
    return f"{len(group.runs)} seeds ({', '.join(group.runs)}), mean +- deviation: {'; '.join(spread)}."


def plot_curves(path: Path, histories: Sequence[History]) -> None:
    """Plot the losses of runs of one metric: training as thin lines, validation with markers."""
    runs = [past.run for past in histories]
    by_metric = {run.metric: run.name for run in runs}
    if len(by_metric) > 1:
        named = ", ".join(f"{name} in {metric}" for metric, name in by_metric.items())
        raise UsageError(f"`plot` needs one metric, but these runs have two ({named}); compare runs of one metric")
    curves, styles = {}, {}
    for number, (name, past) in enumerate(
        zip(run_directory.short_names([run.directory for run in runs]), histories, strict=True)
    ):
        if not past.reports:
            missing = f"{past.run.directory} has no training reports in {run_directory.METRICS}"
            raise RunError(f"{missing}; leave it out of `plot`")
        for split, style in STYLES.items():
            reports = past.reports_of(split)
            losses = [metrics.in_metric(report["loss_nats"], past.run.metric) for report in reports]
            curves[f"{name}, {split}"] = [report["step"] for report in reports], losses
            styles[f"{name}, {split}"] = {"color": f"C{number}", **style}
    from txlcli.commands import plots

    plots.plot_curves(
        path,
        {metrics.METRIC_TITLES[runs[0].metric]: curves},
        x_label="steps",
        title=", ".join(dict.fromkeys(run.settings.corpus.store for run in runs)),
        log_y=[metrics.METRIC_TITLES["ppl"]],
        styles=styles,
    )


@app.command("difference")
def difference(
    first: Annotated[Path, Argument(metavar="A.h5", help="Losses of a run, from txl eval --losses.")],
    second: Annotated[Path, Argument(metavar="B.h5", help="Losses of another run on the same text.")],
    json: Json = False,
) -> None:
    """Test if the difference of two losses is more than chance.

    Pairs the losses token by token, and resamples blocks of the text (bootstrap) for a 95 % interval.

    Example: txl runs difference a.h5 b.h5
    """
    from txlcli.workflows import difference as workflow

    console.show_result(workflow.run(first, second), _show_difference, json=json)


def _show_difference(result: "LossDifference") -> None:
    verdict = "is more than chance" if result.significant else "may be chance"
    interval = "excludes" if result.significant else "contains"
    note = (
        f"The difference {verdict}: the 95 % interval {interval} 0. It covers this text, not other seeds of training."
    )
    console.show_facts(f"{result.tokens:,} tokens", result, [note])
