"""`txl speed`: speed-up of prediction by memory (Table 9), and the throughput of everything else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from txlcli import console
from txlcli.commands.completion import names_of
from txlcli.commands.options import Json
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.workflows.options import SpeedOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.speed import SpeedResult

THROUGHPUT = ("work", "tokens_per_s", "ms_per_token", "share_of_peak", "peak_memory_bytes")


def speed(
    options: SpeedOptions,
    subject: Annotated[
        str | None,
        Argument(
            metavar="RUN|RECIPE",
            help="Run, or recipe with random weights, to time [default: the most recent run].",
            autocompletion=names_of("runs", "recipes"),
        ),
    ] = None,
    *,
    workspace: RunWorkspace,
    json: Json = False,
) -> None:
    """Time a model with and without memory.

    Also times training, evaluation and generation, as shares of the machine's peak rate. Speed does not depend on the
    weights, so a recipe gives the same result as a run.

    Example: txl speed stdlib --attn-len 128,256,512
    """
    if subject is not None and not run_directory.is_run(subject, workspace.runs_dir):
        recipe.load(subject, options.overrides)  # reports a wrong name before PyTorch is imported
    from txlcli.workflows import speed as workflow

    result = workflow.run(subject, options, workspace)
    if options.plot is not None:
        plot_times(options.plot, result)
    console.show_result(result, show, json=json)


def show(result: "SpeedResult") -> None:
    """Write the tables to stdout; all times are medians."""
    title = f"{result.model} on {result.device}, {result.precision}"
    if result.slowdown:
        _show_slowdown(title, result)
        title = "throughput"
    note = (
        f"share of peak: of the {result.peak_gflops_per_s:,.0f} GFLOP/s of a large matrix product, counting visible "
        "keys and distinct distances only."
    )
    console.show_rows(title, list(map(vars, result.throughput)), THROUGHPUT, [note])


def _show_slowdown(title: str, result: "SpeedResult") -> None:
    """Write Table 9, and what else was timed at its attention lengths."""
    rows = result.slowdown
    cells = [
        [
            f"{row.attn_len:,}",
            _short(row.xl_ms_per_token),
            _short(row.vanilla_ms_per_token),
            metrics.format_ratio(row.slowdown),
            f"{row.paper_slowdown:,}x" if row.paper_slowdown else "-",
            f"{_short(row.vanilla_batched_ms_per_token)} ({metrics.format_ratio(row.slowdown_batched)})",
            f"{_short(row.xl_single_ms_per_token)} ({metrics.format_ratio(row.slowdown_single)})",
        ]
        for row in rows
    ]
    notes = [
        f"Table 9, ms per token, medians of {result.repeat}. XL: one lane, M = attention, L = {rows[0].seg_len}.",
        "vanilla: the same weights without memory, recomputing one window per prediction.",
        "batched: with the fastest number of windows at once; XL, L = 1: token by token; each with its slowdown.",
    ]
    columns = ("attention", "XL", "vanilla", "slowdown", "paper", "vanilla batched", "XL, L = 1")
    console.show_table(title, columns, cells, notes)


def _short(ms: float) -> str:
    """Format a time with digits according to its size."""
    return f"{ms:.{3 if ms < 1 else 2 if ms < 100 else 0}f}"


def plot_times(path: Path, result: "SpeedResult") -> None:
    """Plot the times per token over the attention length."""
    from txlcli.commands import plots

    rows = sorted(result.slowdown, key=lambda row: row.attn_len)
    times = {
        "Transformer-XL": [row.xl_ms_per_token for row in rows],
        "Transformer-XL, one token at a time": [row.xl_single_ms_per_token for row in rows],
        "vanilla": [row.vanilla_ms_per_token for row in rows],
        "vanilla, batched": [row.vanilla_batched_ms_per_token for row in rows],
    }
    curves = {name: ([row.attn_len for row in rows], ms_per_token) for name, ms_per_token in times.items()}
    x_label, y_label = "attention length (tokens)", "ms per token"
    plots.plot_curves(path, {y_label: curves}, x_label=x_label, title=result.model, log_y=[y_label])
