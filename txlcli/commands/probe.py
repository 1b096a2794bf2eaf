"""`txl probe`: how far back a model finds what it has read."""

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


def show(result: "ProbeResult") -> None:
    """Write the table to stdout, a row per distance."""
    scoring, settings = result.scoring, result.scoring.settings
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
    distance = f"{row.distance:,}" if isinstance(row.distance, int) else row.distance
    shares = ["-" if share is None else f"{share:.1%}" for share in (row.copied, row.recalled)]
    nats = (row.copy_saved_nats, row.recall_saved_nats, row.word_nats, row.word_nats_without_memory)
    copy, recall, word, without = ("-" if loss is None else f"{bits(loss):.2f}" for loss in nats)
    return [distance, shares[0], copy, shares[1], recall, f"{row.words:,}", word, without]


def plot(path: Path, result: "ProbeResult") -> None:
    """Plot the bits that repetitions save, and the losses of words, over the distance."""
    from txlcli.commands import plots

    scoring = result.scoring
    rows = {row.distance: row for row in result.rows if isinstance(row.distance, int)}

    def curve(name: str) -> tuple[list[float], list[float | None]]:
        nats = [getattr(row, name) for row in rows.values()]
        return list(rows), [None if loss is None else bits(loss) for loss in nats]

    mem_len = scoring.settings.mem_len
    plots.plot_panels(
        path,
        {
            "bits saved per token": {"copy": curve("copy_saved_nats"), "recall": curve("recall_saved_nats")},
            "bits per word": {"M = 0": curve("word_nats_without_memory"), f"M = {mem_len}": curve("word_nats")},
        },
        x_label="distance (tokens)",
        title=f"{scoring.opened.run.name} on {scoring.text.title}, L = {scoring.settings.seg_len}, M = {mem_len}",
        log_x=True,
    )
