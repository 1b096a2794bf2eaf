"""`txl runs report`: everything about a run on one page."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txlcli import __version__, console
from txlcli.commands.options import Json, Run, Where, with_options
from txlcli.commands.runs import RANK_COLUMNS, app, describe, plot_curves, rank_notes, rank_row
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.runs.log_file import Report
from txlcli.workflows import overview
from txlcli.workflows.options import ReportOptions
from txlcli.workflows.reproduction.section import Grid, Section

if TYPE_CHECKING:
    from txlcli.workflows.run_report import RunReport


@app.command("report")
@with_options
def report(options: ReportOptions, run_name: Run = None, *, where: Where, json: Json = False) -> None:
    """Write a report of a run as one page.

    Shows settings, training curves, recorded evaluations, samples, attention, and the run among published results.
    Measures attention on the valid split, and generates the samples after passages of the test split.

    Example: txl runs report stdlib
    """
    from txlcli.commands import pages
    from txlcli.workflows import run_report

    result = run_report.run(run_name, options, where.workspace(json=json))
    title, footer = f"Run {result.history.run.name}", f"Made by txl {__version__}."
    paths = pages.write_report(title, sections(result), footer, result.directory)
    if json:
        console.show_json({**result.to_json(), "report": paths})
    else:
        console.show_line(f"report: {', '.join(paths)}")


def sections(result: "RunReport") -> list[Section]:
    """Return the sections of the report; the figures are written to its directory."""
    from txlcli.workflows.reproduction.items import sample_texts

    run = result.history.run
    settings = [[key, recipe.format_value(value)] for key, value in recipe.changed_keys(run.settings).items()]
    samples = _notes(result, "samples", "Contexts are random passages of the test split.")
    return [
        Section(title="Run", grids=[Grid(["", ""], describe(overview.summarize(result.history)))]),
        Section(title="Settings", notes=["Other settings have their defaults."], grids=[Grid(["", ""], settings)]),
        _training(result),
        _evaluations(result.history.evals, run.metric),
        Section(title="Samples", notes=samples, texts=sample_texts(result.samples or ())),
        _attention(result),
        _published(result),
    ]


def _notes(result: "RunReport", part: str, *notes: str) -> list[str]:
    """Return the notes of a section, or the reason why the run lacks this part."""
    return [console.with_flags(result.missing[part])] if part in result.missing else list(notes)


def _training(result: "RunReport") -> Section:
    if not result.history.reports:
        return Section(title="Training", notes=["The run has no training reports."])
    plot_curves(result.directory / "curves.png", [result.history])
    figures = [["curves.png", "Losses of training and validation by step."]]
    return Section(title="Training", figures=figures)


def _evaluations(evals: Sequence[Report], metric: str) -> Section:
    """Show the newest evaluation of each text with each setting."""
    newest = {(row["text"], row["tokens"], _setting(row)): row for row in evals}
    rows = [
        [
            text,
            setting,
            f"{tokens:,}",
            metrics.format_measure(metrics.in_metric(row["loss_nats"], metric)),
            metrics.format_ratio(row["slowdown"]) if row.get("slowdown") else "-",
        ]
        for (text, tokens, setting), row in newest.items()
    ]
    columns = ["text", "setting", "tokens", metrics.METRIC_TITLES[metric], "slowdown"]
    notes = ["The newest result of each setting."] if rows else ["None yet: run txl eval."]
    return Section(title="Evaluations", notes=notes, grids=[Grid(columns, rows)] if rows else [])


def _setting(row: Report) -> str:
    length = f"N = {row['attn_len']}" if row.get("attn_len") else f"M = {row['mem_len']}"
    length = "state" if row["attn_len_max"] is None else length
    return ", ".join(filter(None, (row.get("protocol"), row.get("method"), length)))


def _attention(result: "RunReport") -> Section:
    from txlcli.commands import attention
    from txlcli.commands.attention_plots import plot_figure

    measured, figures, grids = result.attention, [], []
    if measured is not None:
        for number in measured.figures:
            plot_figure(measured, number, result.directory / f"figure{number}.png")
            figures.append([f"figure{number}.png", f"Figure {number} of the paper for this run."])
        grids.append(Grid(attention.COLUMNS, attention.rows(measured)))
    notes = attention.notes(measured) if measured else _notes(result, "attention")
    return Section(title="Attention", notes=notes, grids=grids, figures=figures)


def _published(result: "RunReport") -> Section:
    table, title = result.published, "Published results"
    if table is None:
        return Section(title=title, notes=_notes(result, "published"))
    grid = Grid(RANK_COLUMNS, [rank_row(row) for row in table.rows])
    notes = [f"Table {table.table.number} of the paper, {table.table.metric}, the best first.", *rank_notes(table)]
    return Section(title=title, notes=notes, grids=[grid])
