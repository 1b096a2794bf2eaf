"""`txl probe`: how far back a model finds what it has read."""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json, Run
from txlcli.paper.metrics import bits
from txlcli.workflows.probe_options import ProbeOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.probe import ProbeResult, ProbeRow

COLUMNS = ("distance", "copied", "copy bits", "recalled", "recall bits", "words", "word bits", "M = 0")


def probe(
    options: ProbeOptions,
    run_name: Run = None,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Probe how far back a model finds what it has read.

    By distance in tokens: copies of random tokens, recall of the token that followed a key, and the loss of words that
    occurred before.

    Example: txl probe --plot probe.png
    """
    from txlcli.workflows import probe as workflow

    result = workflow.run(run_name, options, workspace)
    console.show_result(result, show, json=json)
    if options.plot is not None:
        plot(options.plot, result)
        console.say(f"figure written to {options.plot}")


def show(result: "ProbeResult") -> None:
    """Write the table to stdout, a row per distance."""
    scoring = result.scoring
    settings = scoring.settings
    notes = [
        "copied, recalled: repeated tokens that the model finds likeliest; copy and recall bits: what a repetition "
        "saves per token.",
        f"words: those of {scoring.text.title} that occurred before, up to so many tokens back; word bits: loss per "
        "word; M = 0: the same without memory.",
        f"L = {settings.seg_len}, M = {settings.mem_len}, {scoring.opened.precision}; distances in tokens.",
    ]
    title = f"Probes of {scoring.opened.run.directory}"
    console.show_table(title, COLUMNS, list(map(_cells, result.rows)), notes)


def _cells(row: "ProbeRow") -> list[str]:
    return [
        f"{row.distance:,}" if isinstance(row.distance, int) else row.distance,
        console.cell(row.copied, ".1%"),
        _bits(row.copy_saved_nats),
        console.cell(row.recalled, ".1%"),
        _bits(row.recall_saved_nats),
        f"{row.words:,}",
        _bits(row.word_nats),
        _bits(row.word_nats_without_memory),
    ]


def _bits(nats: float | None) -> str:
    return "-" if nats is None else f"{bits(nats):.2f}"


def plot(path: Path, result: "ProbeResult") -> None:
    """Plot the bits that repetitions save, and the losses of words, over the distance."""
    from txlcli.commands import plots

    rows = {row.distance: row for row in result.rows if isinstance(row.distance, int)}

    def curve(losses_nats: Iterable[float | None]) -> tuple[list[float], list[float | None]]:
        return list(rows), [None if loss is None else bits(loss) for loss in losses_nats]

    saved = {
        "copy": curve(row.copy_saved_nats for row in rows.values()),
        "recall": curve(row.recall_saved_nats for row in rows.values()),
    }
    scoring = result.scoring
    mem_len = scoring.settings.mem_len
    of_words = {
        "M = 0": curve(row.word_nats_without_memory for row in rows.values()),
        f"M = {mem_len}": curve(row.word_nats for row in rows.values()),
    }
    plots.plot_panels(
        path,
        {"bits saved per token": saved, "bits per word": of_words},
        x_label="distance (tokens)",
        title=f"{scoring.opened.run.name} on {scoring.text.title}, L = {scoring.settings.seg_len}, M = {mem_len}",
        log_x=True,
    )
