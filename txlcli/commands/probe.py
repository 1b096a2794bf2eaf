"""`txl probe`: how far back a model finds what it has read."""

import math
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.commands.options import Json, Run, Verbose, Where, with_options
from txlcli.paper.metrics import bits
from txlcli.runs import run_directory
from txlcli.workflows.options import ProbeOptions

if TYPE_CHECKING:
    from txlcli.workflows.probe import ProbeResult, Repetition, WordLosses

COLUMNS = ("distance", "copied", "saved", "recalled", "saved", "words", "bits", "M = 0")


@with_options
def probe(
    options: ProbeOptions, run_name: Run = None, *, where: Where, verbose: Verbose = False, json: Json = False
) -> None:
    """Probe how far back a model finds what it has read.

    By distance in tokens: copies of random tokens, recall of the token that followed a key, and the loss of words that
    occurred before.

    Example: txl probe --plot probe.png
    """
    run_directory.find(run_name, where.runs_dir, data_dir=where.data_dir)  # a wrong name, before PyTorch is imported
    from txlcli.workflows import probe as workflow

    result = workflow.run(run_name, options, where.workspace(json=json))
    console.show_result(result, partial(show, verbose=verbose), json=json)
    if options.plot is not None:
        plot(options.plot, result)


def show(result: "ProbeResult", *, verbose: bool = False) -> None:
    """Write the table to stdout, a row per distance."""
    rows = [[f"{row.distance:,}", *_cells(row.copy), *_cells(row.recall), *_words(row.words)] for row in result.rows]
    rows += [["farther", *["-"] * 4, *_words(result.farther)], ["new", *["-"] * 4, *_words(result.new)]]
    settings = result.settings
    notes = [
        "copied, recalled: share of repeated tokens that are likeliest; saved: bits per token, by the repetition.",
        f"L = {settings.seg_len}, M = {settings.mem_len}, {result.opened.precision}; distances in tokens.",
        f"words: those of {result.text.title} that occurred up to so far back; bits: per word; M = 0: without memory.",
    ]
    console.show_table(f"Probes of {result.opened.run.directory}", COLUMNS, rows, notes, verbose=verbose)


def _cells(repetition: "Repetition") -> list[str]:
    return [f"{repetition.correct:.1%}", f"{bits(repetition.control_nats - repetition.loss_nats):.2f}"]


def _words(group: "WordLosses") -> list[str]:
    losses = (group.loss_nats, group.without_memory_nats)
    return [f"{group.words:,}", *("-" if nats is None else f"{bits(nats):.2f}" for nats in losses)]


def plot(path: Path, result: "ProbeResult") -> None:
    """Plot the bits that repetitions save, and the losses of words, over the distance."""
    import numpy as np

    from txlcli.commands import plots

    figure, rows, settings = plots.new_figure(9.6, 4.2), result.rows, result.settings
    panels: dict[str, dict[str, list[float | None]]] = {
        "bits saved per token": {
            "copy": [row.copy.control_nats - row.copy.loss_nats for row in rows],
            "recall": [row.recall.control_nats - row.recall.loss_nats for row in rows],
        },
        "bits per word": {
            "M = 0": [row.words.without_memory_nats for row in rows],
            f"M = {settings.mem_len}": [row.words.loss_nats for row in rows],
        },
    }
    for axes, (label, curves) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for name, nats in curves.items():
            axes.plot([row.distance for row in rows], np.array(nats, float) / math.log(2), marker="o", label=name)
        axes.axvline(settings.seg_len + settings.mem_len, color="0.6", linestyle=":", label="L + M")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,g}")
        axes.set(xlabel="distance (tokens)", ylabel=label)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.suptitle(plots.literal(f"{result.opened.run.name} on {result.text.title}"))
    plots.save(figure, path)
