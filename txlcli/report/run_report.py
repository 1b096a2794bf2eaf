"""Everything about a run on one page."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from txlcli import __version__
from txlcli.config.ranges import NaturalInt, Seed
from txlcli.errors import RunError, TxlError
from txlcli.paper import metrics
from txlcli.report import attention, figures
from txlcli.report.run_facts import describe, settings_of
from txlcli.runs import history, summaries
from txlcli.runs.history import History
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import errors_of_writing
from txlcli.system.command_lines import with_flags
from txlcli.system.written_files import MARK, check_replaceable
from txlcli.workflows import ranking
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.options import Options, force_option, option, seed_option
from txlcli.workflows.reproduction.section import Grid, ReportSection
from txlcli.workflows.result import Result
from txlcli.workflows.workspace import Workspace

SAMPLE_TOKENS = 300
FIGURE = re.compile(r"(curves|figure\d)\.png")
"""A figure of a report, which is written before the page."""
PAGE = re.compile(r"report\.(html|md)")
MADE = "Made by txl"
"""Beginning of the last line of a report."""
CAPTIONS = {
    5: "Average attention of each head by distance",
    6: "Attention of single heads to the tokens before a passage",
    7: "Attention that each term of the score would give alone",
}
"""Captions of the figures of attention by their numbers in the paper."""


class ReportOptions(Options):
    """Options of `txl runs report`."""

    out: Path | None = option("Folder of the report [default: RUN/report].", metavar="FOLDER")
    samples: NaturalInt = option("Number of texts to generate.", default=2)
    seed: Seed = seed_option()
    force: bool = force_option()


@dataclass(frozen=True, kw_only=True)
class RunReport(Result):
    """Files of a report."""

    run: str
    missing: dict[str, str]
    """Reason of each part that the run lacks."""
    report: list[str]
    """Paths of the page, as Markdown and as HTML."""


def make(run: Run, options: ReportOptions, workspace: Workspace) -> RunReport:
    """Write the report of a run."""
    from txlcli.report import pages

    directory = _make_directory(options.out or run.directory / "report", force=options.force)
    past = history.read(run)
    missing: dict[str, str] = {}

    def attempt(part: str, title: str, make: Callable[[], ReportSection]) -> ReportSection:
        """Return a section, or the reason why the run lacks it."""
        try:
            section = make()
        except TxlError as error:
            missing[part] = str(error)
            section = ReportSection(notes=[with_flags(str(error))])
        return replace(section, title=title)

    facts = describe(summaries.summarize(past))
    if run.weights is not None:
        facts.append(["weights", f"{run.weights.name} in evaluations, samples and attention"])
    summary = Grid(["", ""], facts)
    settings = Grid(["", ""], settings_of(run))
    sections = [
        ReportSection(title="Run", grids=[summary]),
        ReportSection(title="Settings", notes=["Other settings have their defaults."], grids=[settings]),
        _training(past, directory),
        _evaluations(past),
        attempt("samples", "Samples", lambda: _samples(run, options, workspace)),
        attempt("attention", "Attention", lambda: _attention(run, directory, workspace)),
        attempt("published", "Published results", lambda: ranking.rank(past)),
    ]
    paths = pages.write_report(f"Run {run.name}", sections, f"{MADE} {__version__}.", directory)
    return RunReport(run=str(run.directory), missing=missing, report=paths)


def _make_directory(directory: Path, *, force: bool) -> Path:
    """Make the directory of a report, which may have files only if `force` may overwrite them.

    Figures without a page were left by an interrupted report; they are replaced.
    """
    with errors_of_writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        names = [path.name for path in directory.iterdir()]
        if not (force or all(map(FIGURE.fullmatch, names))):
            raise RunError(f"{directory} has files; give another `out`, or overwrite them with `force`")
    for path in directory.iterdir():
        if FIGURE.fullmatch(path.name) or PAGE.fullmatch(path.name):
            check_replaceable(path, MADE if path.suffix == ".md" else MARK)
    return directory


def _training(past: History, directory: Path) -> ReportSection:
    if not past.reports:
        return ReportSection(title="Training", notes=["The run has no training reports."])
    figures.plot_curves(directory / "curves.png", [past])
    return ReportSection(title="Training", figures=[["curves.png", "Losses of training and validation by step."]])


def _evaluations(past: History) -> ReportSection:
    """Show the newest evaluation of each text with each protocol, with the weights of the report."""
    evals = list(filter(past.is_of_weights, past.evals))
    if not evals:
        return ReportSection(title="Evaluations", notes=["None of these weights yet: run txl eval."])
    newest = {(row["text"], row["tokens"], history.describe_protocol(row)): row for row in evals}
    rows = []
    for (text, tokens, protocol), row in newest.items():
        loss = metrics.format_measure(past.in_metric(row))
        slowdown = metrics.format_ratio(row.get("slowdown") if row.get("times_trusted", True) else None)
        rows.append([text, protocol, f"{tokens:,}", loss, slowdown])
    columns = ["text", "protocol", "tokens", metrics.METRIC_TITLES[past.run.metric], "slowdown"]
    notes = ["The newest result of each protocol. A slowdown that was measured on a busy machine is left out."]
    return ReportSection(title="Evaluations", notes=notes, grids=[Grid(columns, rows)])


def _samples(run: Run, options: ReportOptions, workspace: Workspace) -> ReportSection:
    """Generate texts after random passages of the test split, with their actual continuations."""
    from txlcli.workflows import generate
    from txlcli.workflows.reproduction.items import sample_texts

    tokens = SAMPLE_TOKENS
    store = workspace.open_run(run).store(workspace.data_dir)
    if "test" in store.splits and len(store.ids("test")) <= SAMPLE_TOKENS:
        tokens = max(1, len(store.ids("test")) // 2)
    samples = []
    for seed in range(options.seed, options.seed + options.samples):
        sample_options = GenerateOptions(tokens=tokens, reference=True, seed=seed)
        samples.append(generate.generate_texts(run, sample_options, workspace))
    return ReportSection(notes=["Contexts are random passages of the test split."], texts=sample_texts(samples))


def _attention(run: Run, directory: Path, workspace: Workspace) -> ReportSection:
    measured, paths = attention.measure_and_plot(run, directory, AttentionOptions(force=True), workspace)
    captions = [[path.name, f"{CAPTIONS[number]} (Figure {number} of the paper)."] for number, path in paths.items()]
    grid = Grid(attention.COLUMNS, attention.rows(measured))
    return ReportSection(notes=attention.notes(measured), grids=[grid], figures=captions)
