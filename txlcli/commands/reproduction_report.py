"""Shows a reproduction on the terminal and as a report."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from txlcli import __version__, console
from txlcli.commands import attention_plots, pages, plots, recl
from txlcli.commands.training_tables import duration
from txlcli.core.measures.gpus import CPU_SHARE
from txlcli.workflows.reproduction.costs import MAX_S, CostsResult
from txlcli.workflows.reproduction.reproduce import ReproduceResult
from txlcli.workflows.reproduction.runner import Report
from txlcli.workflows.reproduction.section import Section


def write(sections: Sequence[Section], scale_name: str, directory: Path) -> list[str]:
    """Write the report to a directory, which has its figures; return the paths."""
    title = f"Transformer-XL (Dai et al. 2019), reproduced at {scale_name} scale"
    footer = f"Made by txl {__version__}. The paper's numbers are those of its Tables 1 to 10."
    return pages.write_report(title, sections, footer, directory)


def show(result: ReproduceResult) -> None:
    """Write tables and claims to stdout."""
    for section in result.sections:
        for grid in section.grids:
            console.show_table(section.title, grid.columns, grid.rows, [grid.caption] if grid.caption else ())
        for claim in section.claims:
            console.show_line(f"{claim.verdict}: {claim.text} ({claim.detail})")
        if section.grids or section.claims:
            console.show_line("")
    console.show_line(f"report: {', '.join(result.report)}")


def show_costs(result: CostsResult) -> None:
    """Write the costs of the missing training runs to stdout."""
    lines = []
    for row in result.items:
        time = duration(row.seconds) if row.missing else "-"
        lines.append([row.item, str(row.models), str(row.missing), f"{row.training_flops:.2g}", time])
    notes = [
        result.scale.description,
        "Time: of the missing training runs on an idle machine, without evaluation, from timed steps, or if these take "
        f"too long from {CPU_SHARE:.0%} of the {result.peak_flops_per_s / 1e9:,.0f} GFLOP/s of a matrix product. "
        f"Models whose turn comes after {MAX_S:g} seconds of timing have the median rate of those before. Models that "
        "several items need count for each.",
    ]
    columns = ("item", "training runs", "missing", "FLOP", "time")
    console.show_table(f"{result.scale.name} scale", columns, lines, notes)


REPORT = Report(
    write=write,
    plot_curves=partial(plots.plot_curves, log_x=True),
    plot_gains=recl.plot_gains,
    plot_perplexities=recl.plot_perplexities,
    plot_attention=attention_plots.plot_figure,
)
