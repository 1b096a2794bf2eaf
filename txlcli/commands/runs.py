"""`txl runs`: list, show, compare, plot and delete runs, and test if losses differ."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from txlcli import console
from txlcli.commands.options import Json, RunName, RunNames, argument, check_options_last, with_options, write_figure
from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.paper import metrics
from txlcli.report import figures, run_report
from txlcli.report.run_facts import describe, settings_of, with_metric
from txlcli.report.run_report import ReportOptions
from txlcli.runs import history, lifecycle, run_directory, summaries
from txlcli.runs.summaries import Comparison, RunSummary, SeedGroup
from txlcli.system.memory import format_size
from txlcli.workflows.difference_options import DifferenceOptions
from txlcli.workflows.options import Options, PlotOptions, flag_option
from txlcli.workflows.workspace import RunsDir, RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.difference import LossDifference

LIST_COLUMNS = ("run", "state", "valid", "test", "saved")
LIST_NOTES = (
    "valid: best in training; test: chosen on valid, or with the recipe's settings, or else the best score.",
    "Details: txl runs show RUN",
)
SAME_SETTINGS = "The settings are the same."
OTHER_TEXTS = "The texts or vocabularies differ: only bits/byte of the same text can be compared."
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
        return
    check_options_last(context)


@app.command("list")
def list_(where: RunsDir, json: Json = False) -> None:
    """List the training runs, as "txl runs" does.

    Example: txl runs list --json
    """
    directories = run_directory.newest_first(where.runs_dir)
    if not directories:
        raise RunError(f'no run under {where.runs_dir}; run "txl train stdlib" first, or give another --runs-dir')
    entries = [summaries.describe(directory, console.say) for directory in directories]
    if json:
        console.show_json({"runs_dir": str(where.runs_dir), "runs": entries})
        return
    console.show_table(f"runs in {where.runs_dir}", LIST_COLUMNS, [_list_row(entry) for entry in entries], LIST_NOTES)


def _list_row(entry: RunSummary) -> list[str]:
    saved = entry.saved[5:16].replace("T", " ")  # month, day, hour, minute
    state = entry.state
    if state in ("unfinished", "interrupted") and entry.step is not None and entry.max_steps:
        state += f" {entry.step / entry.max_steps:.0%}"
    valid = with_metric(entry, entry.best_valid)
    if entry.valid_tokens:
        valid += f" on {entry.valid_tokens:,}"
    return [entry.name, state, valid, with_metric(entry, entry.test), saved]


@app.command("show")
def show(where: RunsDir, run_name: RunName = None, json: Json = False) -> None:
    """Show a run: its progress, results and settings.

    Settings with their default value are left out.

    Example: txl runs show stdlib
    """
    run = run_directory.find(run_name, where.runs_dir)
    entry = summaries.summarize(history.read(run))
    if json:
        console.show_json({**vars(entry), "settings": recipe.to_table(run.settings)})
        return
    console.show_table(f"run {entry.name}", ("", ""), [*describe(entry), *settings_of(run)])


class DeleteOptions(Options):
    """Options of `txl runs delete` and `txl runs prune`."""

    yes: bool = flag_option("Delete without asking.")


@app.command("delete")
def delete(
    run_names: Annotated[list[str], argument("RUN...", "Runs to delete, by name or folder.", "runs")],
    options: DeleteOptions,
    where: RunsDir,
    json: Json = False,
) -> None:
    """Delete runs.

    Asks first. Files in their folders that txl did not write are kept.

    Example: txl runs delete stdlib-2
    """
    directories = [run_directory.find_directory(name, where.runs_dir) for name in run_names]
    run_directory.check_distinct(directories)
    _delete(directories, options, json=json)


@app.command("prune")
def prune(options: DeleteOptions, where: RunsDir, json: Json = False) -> None:
    """Delete runs without a checkpoint.

    They can be neither resumed nor evaluated. Asks first. Files in their folders that txl did not write are kept.

    Example: txl runs prune
    """
    directories = []
    for directory in run_directory.newest_first(where.runs_dir):
        has_checkpoint = run_directory.has_weights(directory)
        if not (has_checkpoint or lifecycle.is_busy(directory) or lifecycle.has_foreign_card(directory)):
            directories.append(directory)
    if not directories:
        console.say(f"every run in {where.runs_dir} has a checkpoint, or is being trained")
    _delete(directories, options, json=json)


def _delete(directories: Sequence[Path], options: DeleteOptions, *, json: bool) -> None:
    """Ask if the runs are to be deleted, and delete them; none is if another process is writing one of them."""
    for directory in directories:
        lifecycle.check_deletable(directory)
    if directories and not options.yes:
        for directory in directories:
            size = sum(path.lstat().st_size for path in directory.rglob("*"))
            console.warn(f"{directory}: {format_size(size)}")
        console.warn("delete? [y/N]")
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise RunError("nothing was deleted; answer y, or add `yes`")
    kept: list[str] = []
    for directory in directories:
        files = lifecycle.delete(directory)
        kept += map(str, files)
        if not json:
            console.show_line(f"deleted {directory}")
            for path in files:
                console.show_line(f"kept, since txl did not write it: {path}")
    if json:
        console.show_json({"deleted": list(map(str, directories)), "kept": kept})


@app.command("compare")
def compare(options: PlotOptions, where: RunsDir, run_names: RunNames = None, json: Json = False) -> None:
    """Compare two or more runs side by side.

    Shows differing settings, best and last losses, tokens per second and parameters.
    --plot plots the training and validation curves.

    Example: txl runs compare stdlib stdlib-2 --plot curves.png
    """
    histories = [history.read(run) for run in run_directory.find_each(run_names, where.runs_dir)]
    result = summaries.compare(histories)
    # Before the result, unlike in other commands: it rejects runs that cannot be plotted together.
    write_figure(options.plot, figures.plot_curves, histories)
    console.show_result(result, _show_comparison, json=json)


@app.command("plot")
def plot(options: PlotOptions, where: RunsDir, run_names: RunNames = None) -> None:
    """Plot the training and validation curves of runs.

    Without RUN, plots the most recent one. Writes curves.png into the folder of the first run, unless --plot names
    another file.

    Example: txl runs plot stdlib
    """
    runs = run_directory.find_each(run_names, where.runs_dir)
    histories = [history.read(run) for run in runs]
    write_figure(options.plot or runs[0].directory / CURVES, figures.plot_curves, histories)
    for past in histories:
        if past.missing_reports is not None:
            console.say(f"{past.run.directory}: {past.missing_reports}")


def _show_comparison(result: Comparison) -> None:
    """Write the table to stdout: a column per run, without the rows that no run has a value for."""
    by_label = list(map(_compared_cells, result.runs))
    rows = []
    for label in by_label[0]:
        cells = [of_run[label] for of_run in by_label]
        if any(cell != "-" for cell in cells):
            rows.append([label, *cells])
    for name, values in result.settings.items():
        rows.append([name, *map(recipe.format_value, values)])
    notes = []
    if not result.settings:
        notes.append(SAME_SETTINGS)
    if not result.same_text:
        notes.append(OTHER_TEXTS)
    for label, run in zip(result.labels, result.runs, strict=True):
        if run.missing_reports is not None:
            notes.append(f"{label}: {run.missing_reports}")
    notes += map(_describe_seeds, result.seeds)
    console.show_table("runs compared", ["", *result.labels], rows, notes)


def _compared_cells(run: RunSummary) -> dict[str, str]:
    """Return the facts of a run that are compared, in words, by their name in the table; "-" for those it lacks."""
    best_of = "-"
    if run.test_readings is not None and run.test_readings > 1:
        best_of = str(run.test_readings)
    return {
        "recipe": run.recipe or "-",
        "parameters": console.cell(run.parameters, ",.0f"),
        "state": run.state,
        "step": console.cell(run.step, ",.0f"),
        "best valid": with_metric(run, run.best_valid),
        "  at step": console.cell(run.best_valid_step, ",.0f"),
        "last valid": with_metric(run, run.last_valid),
        "last train": with_metric(run, run.last_train),
        "test": with_metric(run, run.test),
        "  with": run.test_setting or "-",
        "  best of": best_of,
        "test bits/byte": console.cell(run.bits_per_byte, ".3f"),
        "tokens/s": console.cell(run.tokens_per_s, ",.0f"),
        "settings changed": ", ".join(f"at {change.step:,}" for change in run.changes) or "-",
    }


def _describe_seeds(group: SeedGroup) -> str:
    """Return mean and standard deviation of the losses of runs that differ in their seed."""
    spread = []
    for split, (mean, deviation) in group.losses.items():
        spread.append(f"{split} {metrics.format_measure(mean)} +- {metrics.format_measure(deviation)}")
    if "test" in group.losses and len(group.test_settings) > 1:
        settings = ", ".join(f"({setting})" for setting in group.test_settings)
        spread.append(f"test has different settings: {settings}")
    return f"{len(group.runs)} seeds ({', '.join(group.runs)}), mean +- deviation: {'; '.join(spread)}."


@app.command("difference")
def difference(
    first: Annotated[str, argument("A", "A run, or a file of txl eval: --losses, or --words.", "runs")],
    second: Annotated[str, argument("B", "Another run or file, on the same text.", "runs")],
    options: DifferenceOptions,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Test if the difference of two losses is more than chance.

    Evaluates the runs, pairs the losses token by token, and resamples blocks of the text (bootstrap) for a 95 %
    interval. Models with different tokens are compared word by word, by two files of txl eval --words.

    Example: txl runs difference stdlib stdlib-2
    """
    from txlcli.workflows import difference as workflow

    result = workflow.run(first, second, options, workspace)
    console.show_result(result, _show_difference, json=json)


def _show_difference(result: "LossDifference") -> None:
    rows = []
    for source in (result.first, result.second):
        nats = source.loss_nats
        name = source.file or source.run
        if source.file and source.run:
            name = f"{source.file} ({source.run})"
        evaluation = source.evaluation
        if source.temperature not in (None, 1):
            evaluation += f", temperature {source.temperature:g}"
        rows.append([str(name), evaluation, f"{nats:.4f}", f"{metrics.bits(nats):.4f}"])
    differences = {
        "difference": result.difference_nats,
        "95 % interval from": result.low_nats,
        "to": result.high_nats,
    }
    for name, nats in differences.items():
        rows.append([name, "", f"{nats:+.4f}", f"{metrics.bits(nats):+.4f}"])
    if result.significant:
        verdict = "The difference is more than chance: the interval excludes 0."
    else:
        verdict = "The difference may be chance: the interval contains 0."
    note = f"{verdict} It covers this text, not other seeds of training."
    headings = ("losses", "evaluation", f"nats/{result.unit}", f"bits/{result.unit}")
    console.show_table(f"{result.tokens:,} {result.unit}s", headings, rows, [note])


@app.command("report")
def report(options: ReportOptions, run_name: RunName = None, *, workspace: RunWorkspace, json: Json = False) -> None:
    """Write a report of a run as one page.

    Shows settings, training curves, recorded evaluations, samples, attention, and the run among published results.
    Measures attention on the valid split, and generates the samples after passages of the test split.

    Example: txl runs report stdlib
    """
    run = run_directory.find(run_name, workspace.runs_dir)
    result = run_report.make(run, options, workspace)
    if json:
        console.show_json(result)
    else:
        console.show_line(f"report: {', '.join(result.report)}")
