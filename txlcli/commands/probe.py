"""`txl probe`: how far back a model finds what it has read."""

from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json, RunName, write_figure
from txlcli.paper.metrics import bits
from txlcli.report import figures
from txlcli.runs import run_directory
from txlcli.workflows.probe_options import ProbeOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.probe import ProbeResult, ProbeRow

COLUMNS = ("distance", "copied", "copy bits", "recalled", "recall bits", "words", "word bits", "M = 0")


def probe(
    options: ProbeOptions,
    run_name: RunName = None,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Probe how far back a model finds what it has read.

    By distance in tokens: copies of random tokens, recall of the token that followed a key, and the loss of words that
    occurred before.

    Example: txl probe --plot probe.png
    """
    run = run_directory.find(run_name, workspace.runs_dir)
    from txlcli.workflows import probe as workflow

    result = workflow.probe_run(run, options, workspace)
    console.show_result(result, show, json=json)
    write_figure(options.plot, figures.plot_probes, result)


def show(result: "ProbeResult") -> None:
    """Write the table to stdout, a row per distance."""
    scoring = result.scoring
    settings = scoring.settings
    notes = [
        "copied, recalled: repeated tokens that the model finds likeliest; copy and recall bits: what a repetition "
        "saves per token.",
        f"words: those of {scoring.text.title} that occurred before, up to so many tokens back; word bits: loss per "
        "word; M = 0: the same without memory.",
        f"L = {settings.seg_len}, {result.memory}, {scoring.opened.precision}; distances in tokens.",
    ]
    title = f"Probes of {scoring.opened.subject}"
    console.show_table(title, COLUMNS, list(map(_cells, result.rows)), notes)


def _cells(row: "ProbeRow") -> list[str]:
    distance = row.distance
    if isinstance(distance, int):
        distance = f"{distance:,}"
    return [
        distance,
        console.cell(row.copied, ".1%"),
        _bits(row.copy_saved_nats),
        console.cell(row.recalled, ".1%"),
        _bits(row.recall_saved_nats),
        f"{row.words:,}",
        _bits(row.word_nats),
        _bits(row.word_nats_without_memory),
    ]


def _bits(nats: float | None) -> str:
    return "-" if nats is None else f"{bits(nats):z.2f}"
