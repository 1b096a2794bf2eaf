"""`txl speed`: speed-up of prediction by memory (Table 9), and the throughput of everything else."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from txlcli import console
from txlcli.commands.eval import UNTRUSTED
from txlcli.commands.options import Json, argument, write_figure
from txlcli.config import recipe
from txlcli.errors import UnknownNameError
from txlcli.paper import metrics
from txlcli.report import figures
from txlcli.runs import run_directory
from txlcli.system.processors import is_trusted
from txlcli.workflows.speed_options import SpeedOptions
from txlcli.workflows.workspace import RunWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.speed import SpeedResult, ThroughputRow

DEFAULT_RECIPE = "enwik8"  # without any run


def speed(
    options: SpeedOptions,
    subject: Annotated[
        str | None,
        argument(
            "RUN|RECIPE",
            "Run, or recipe with random weights, to time [default: the most recent run].",
            "runs",
            "recipes",
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
    if subject is None and not run_directory.any_run(workspace.runs_dir):
        subject = DEFAULT_RECIPE
    # Errors are reported before PyTorch is imported.
    if subject is None or run_directory.is_run(subject, workspace.runs_dir):
        run = run_directory.find(subject, workspace.runs_dir)
        from txlcli.workflows import speed as workflow

        result = workflow.time_run(run, options, workspace)
    else:
        _check_name(subject, workspace)
        recipe.load(subject, options.overrides)
        from txlcli.workflows import speed as workflow

        result = workflow.time_recipe(subject, options, workspace)
    console.show_result(result, show, json=json)
    write_figure(options.plot, figures.plot_times, result)


def _check_name(subject: str, workspace: RunWorkspace) -> None:
    """Reject a name that neither a run nor a recipe has."""
    try:
        recipe.read_text(subject)
    except UnknownNameError as error:
        known = [*run_directory.names(workspace.runs_dir), *error.known]
        listing = '"txl runs" and "txl recipes" list all'
        raise UnknownNameError("run or recipe", subject, known, like=Path(subject).stem, listing=listing) from error


def show(result: "SpeedResult") -> None:
    """Write the tables to stdout."""
    title = f"{result.model} on {result.device}, {result.precision}"
    if result.slowdown:
        _show_slowdown(title, result)
        title = "throughput"
    columns = ["work", "tokens/s", "ms/token", "of peak"]
    if result.throughput[0].peak_memory_bytes:  # on CUDA only
        columns.append("peak MiB")
    cells = list(map(_throughput_cells, result.throughput))
    note = (
        f"of peak: share of the {result.peak_gflops_per_s:,.0f} GFLOP/s of a large matrix product, counting visible "
        "keys and distinct distances only."
    )
    notes = [note]
    by_row = [row.processor_share for row in result.slowdown] + [row.processor_share for row in result.throughput]
    lowest = min((share for share in by_row if share is not None), default=None)
    if not is_trusted(lowest):
        notes.append(UNTRUSTED.format(share=lowest))
    console.show_table(title, columns, cells, notes)


def _throughput_cells(row: "ThroughputRow") -> list[str]:
    """Return the cells of a throughput; the last one on CUDA only."""
    cells = [
        row.work,
        f"{row.tokens_per_s:,.0f}",
        _spread(row.ms_per_token, row.low_high_ms),
        f"{row.share_of_peak:.1%}",
    ]
    if row.peak_memory_bytes:
        cells.append(f"{row.peak_memory_bytes / 2**20:,.0f}")
    return cells


def _show_slowdown(title: str, result: "SpeedResult") -> None:
    """Write Table 9, and the other timings at its attention lengths."""
    compared = []
    others = []
    for row in result.slowdown:
        xl = _spread(row.xl_ms_per_token, row.xl_low_high_ms)
        vanilla = _spread(row.vanilla_ms_per_token, row.vanilla_low_high_ms)
        slowdown = metrics.format_ratio(row.slowdown)
        paper = metrics.format_ratio(row.paper_slowdown)
        compared.append([f"{row.attn_len:,}", xl, vanilla, slowdown, paper])
        batched = f"{_short(row.vanilla_batched_ms_per_token)} ({row.windows})"
        slowdown_batched = metrics.format_ratio(row.slowdown_batched)
        single = _short(row.xl_single_ms_per_token)
        slowdown_single = metrics.format_ratio(row.slowdown_single)
        others.append([f"{row.attn_len:,}", batched, slowdown_batched, single, slowdown_single])
    seg_len = result.slowdown[0].seg_len
    notes = [
        f"Table 9, median (low-high) of {result.repeat}. XL: one lane, M = attention, L = {seg_len}.",
        "vanilla: the same weights without memory, recomputing one window per prediction.",
    ]
    console.show_table(title, ("attention", "XL ms/token", "vanilla ms/token", "slowdown", "paper"), compared, notes)
    columns = ("attention", "batched", "slowdown batched", "L = 1", "slowdown L = 1")
    note = "batched: with the fastest number of windows at once (in brackets); L = 1: token by token, vs. one window."
    console.show_table("vanilla batched, and XL one token at a time, ms/token", columns, others, [note])


def _spread(median: float, ends: tuple[float, float]) -> str:
    low, high = (_short(end, like=median) for end in ends)
    return f"{_short(median)} ({low}-{high})"


def _short(number: float, *, like: float | None = None) -> str:
    """Format a time with digits according to its size, or to the size of `like`."""
    size = number if like is None else like
    if size < 1:
        return f"{number:.3f}"
    if size < 100:
        return f"{number:.2f}"
    return f"{number:.0f}"
