"""`txl runs compare` and `txl runs published`: runs side by side, and a run among the systems of the paper."""

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import RUNS_DIR, Json, RunsDir, Verbose, with_options
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.paper.published import CONTEMPORARY, FINETUNED
from txlcli.runs.run_directory import Change
from txlcli.workflows import overview, ranking
from txlcli.workflows.options import CompareOptions
from txlcli.workflows.overview import ComparedRun, Comparison
from txlcli.workflows.ranking import PublishedRank, PublishedTable, RankedRow

SAME_SETTINGS = "The settings are the same."
ONCE_OTHER_SETTINGS = "The settings are the same now; a run had other settings before."
OTHER_TEXTS = "The texts or vocabularies differ: these losses cannot be compared."
OTHER_SYMBOLS = "~"
MARKS = {CONTEMPORARY: "contemporary with the paper", FINETUNED: "with two-step finetuning"}


@with_options
def compare(
    options: CompareOptions,
    run_names: Annotated[
        list[str] | None,
        Argument(metavar="RUN RUN...", help="Two or more runs, by name or folder.", autocompletion=completion.runs),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Compare runs side by side.

    Shows differing settings, best and last losses, tokens per second and parameters.
    --plot plots the training and validation curves.

    Example: txl runs compare stdlib stdlib-2 --plot curves.png
    """
    result = overview.compare(run_names or [], options, runs_dir)
    console.show_result(result, _show_comparison, json=json)
    if options.plot is not None:
        _plot_curves(options.plot, result, x_label=options.x)


def _show_comparison(result: Comparison) -> None:
    runs = result.runs
    metric = runs[0].metric if len({run.metric for run in runs}) == 1 else None
    unit = f" {metric}" if metric else ""
    rows: list[list[str | list[str]]] = [
        ["recipe", *(str(run.recipe) for run in runs)],
        ["parameters", *(_count(run.parameters) for run in runs)],
        ["state", *(run.state for run in runs)],
        ["step", *(_count(run.step) for run in runs)],
        [f"best valid{unit}", *(_loss(run, run.best_valid, metric) for run in runs)],
        ["  at step", *(_count(run.best_valid_step) for run in runs)],
        [f"last valid{unit}", *(_loss(run, run.last_valid, metric) for run in runs)],
        [f"last train{unit}", *(_loss(run, run.last_train, metric) for run in runs)],
        [f"test{unit}", *(_loss(run, run.test, metric) for run in runs)],
        ["tokens/s", *(_count(run.tokens_per_s) for run in runs)],
    ]
    rows += [[name, *map(recipe.format_value, values)] for name, values in result.settings.items()]
    changed = any(run.changes for run in runs)
    if changed:
        rows.append(["changed settings", *(_describe_changes(run.changes) or "-" for run in runs)])
    notes = []
    if not result.settings:
        notes.append(ONCE_OTHER_SETTINGS if changed else SAME_SETTINGS)
    notes += [] if result.same_text else [OTHER_TEXTS]
    console.show_table("runs compared", ["", *(run.name for run in runs)], rows, notes)


def _loss(run: ComparedRun, loss: float | None, metric: str | None) -> str:
    """Format a loss, with its metric unless all runs have the same `metric`."""
    return "-" if loss is None else f"{metrics.format_measure(loss)}{'' if metric else f' {run.metric}'}"


def _count(number: float | None) -> str:
    return "-" if number is None else f"{number:,.0f}"


def _describe_changes(changes: Sequence[Change]) -> list[str]:
    """Return the step and the settings of each change, one per line."""
    lines = []
    for change in changes:
        lines.append(f"after {change.step:,}:")
        lines += [
            f"{name} {recipe.format_value(new)} (was {recipe.format_value(old)})"
            for name, (old, new) in change.settings.items()
        ]
    return lines


def _plot_curves(path: Path, result: Comparison, *, x_label: str) -> None:
    """Plot the curves: training as thin lines, validation with markers."""
    from txlcli.commands import plots

    colours = {run: f"C{number}" for number, run in enumerate(dict.fromkeys(run for run, _ in result.curves))}
    styles = {}
    for run, split in result.curves:
        style = {"marker": "", "linewidth": 1.0, "alpha": 0.45} if split == "train" else {"markersize": 4.0}
        styles[f"{run}, {split}"] = {"color": colours[run], **style}
    metric = str(result.runs[0].metric)
    plots.plot_curves(
        path,
        {f"{run}, {split}": curve for (run, split), curve in result.curves.items()},
        x_label=x_label,
        y_label=metrics.METRIC_TITLES[metric],
        title=", ".join(result.stores),
        log_y=metric == "ppl",
        styles=styles,
    )


def published_(
    subject: Annotated[
        str | None,
        Argument(
            metavar="RUN|CORPUS",
            help="Run, or corpus of the paper [default: most recent run].",
            autocompletion=completion.runs,
        ),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Compare a run with the paper's Tables 1 to 5.

    Shows the run among all systems on its corpus, the best first.
    With a corpus of the paper instead of a run, shows the table alone.

    Example: txl runs published ptb
    """
    result = ranking.run(subject, runs_dir)
    if result.ours is not None and subject is None:
        console.say(f"the most recent run: {result.ours.history.run.directory}")
    console.show_result(result, lambda result: _show_rank(result, verbose=verbose), json=json)


def _show_rank(result: PublishedTable, *, verbose: bool) -> None:
    table = result.table
    title = f"Table {table.number} of the paper: {table.title}, {table.metric}, the best first"
    rows = [_rank_row(row) for row in result.rows]
    console.show_table(title, ("system", "#param", "valid", "test"), rows, _rank_notes(result), verbose=verbose)


def _rank_row(row: RankedRow) -> list[str]:
    marks = row.mark + ("" if row.same_symbols else OTHER_SYMBOLS)
    label = f"> {row.label}" if row.run else f"  {row.label}{' ' + marks if marks else ''}"
    digits = ".2f" if row.run else ""
    numbers = [f"{number:{digits}}" if number is not None else "-" for number in (row.valid, row.test)]
    return [label, row.parameters or "-", *numbers]


def _rank_notes(result: PublishedTable) -> list[str]:
    notes, rows, ours = [], result.rows, result.ours
    if ours is not None and ours.result is not None:
        for split, source in ours.sources.items():
            notes.append(f"> {split}: {source or f'none yet; {_eval_command(split, ours)}'}")
        if ours.test is None:
            notes.append("> ranked by its validation result.")
    elif ours is not None:
        next_step = "" if ours.reasons else f" yet; {_eval_command('test', ours)}"
        notes.append(f"{ours.history.run.directory} is not in the table{next_step}")
    if ours is not None:
        notes += [f"not comparable: {reason}" for reason in ours.reasons]
    if not all(row.same_symbols for row in rows):
        notes.append(f"{OTHER_SYMBOLS} not comparable: the released code drops symbols that others keep.")
    return notes + [f"{mark} {text}" for mark, text in MARKS.items() if any(row.mark == mark for row in rows)]


def _eval_command(split: str, ours: PublishedRank) -> str:
    return shlex.join(["txl", "eval", str(ours.history.run.directory), "--split", split])
