"""Shows a reproduction on the terminal and as a report."""

from collections.abc import Sequence
from pathlib import Path

from txlcli import __version__, console
from txlcli.commands import attention_plots, pages, recl
from txlcli.workflows.reproduction.reproduce import CostsResult, ReproduceResult
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
    """Write the numbers of training runs to stdout."""
    columns = ("item", "training runs", "missing", "steps", "tokens")
    lines = [
        [row.item, *(f"{number:,}" for number in (row.models, row.missing, row.steps, row.tokens))]
        for row in result.items
    ]
    note = "Steps and tokens: of the missing training runs. Models that several items need count for each."
    console.show_table(f"{result.scale} scale", columns, lines, [result.description, note])


REPORT = Report(
    write=write,
    plot_recl={"figure3": recl.plot_gains, "figure4": recl.plot_perplexities},
    plot_attention=attention_plots.plot_figure,
)
