"""`txl reproduce`: the paper's tables and figures, our numbers next to the paper's."""

from typing import TYPE_CHECKING, Annotated

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.errors import UsageError
from txlcli.workflows.reproduction.options import REPRODUCIBLE, ReproduceOptions, select_items
from txlcli.workflows.workspace import DeviceWorkspace

if TYPE_CHECKING:
    from txlcli.workflows.reproduction.reproduce import CostsResult, ReproduceResult
    from txlcli.workflows.reproduction.runner import ReportWriter


def reproduce(
    options: ReproduceOptions,
    item_names: Annotated[
        list[str] | None,
        argument(
            "ITEM...",
            "table1 to table10, figure3 to figure7, appendix-e, or all of these; frontier goes beyond the paper.",
            "items",
        ),
    ] = None,
    *,
    workspace: DeviceWorkspace,
    json: Json = False,
) -> None:
    """Reproduce the paper's tables and figures.

    Prepares the texts, trains and evaluates whatever is missing, and writes report.md and report.html with our numbers
    next to the paper's. Finished runs are reused, interrupted runs resumed. frontier compares
    recurrence with other memories, positions and blocks.

    Example: txl reproduce table6
    """
    if options.list and not item_names:
        item_names = list(REPRODUCIBLE)
    names = select_items(item_names or [])
    if not names:
        raise UsageError('give a table or figure, such as "txl reproduce table6"; --list shows all of them')
    from txlcli.workflows.reproduction import reproduce as workflow
    from txlcli.workflows.reproduction import scales

    scale = scales.get(options.scale)
    if options.list:
        console.show_result(workflow.list_costs(names, options, scale, workspace), show_costs, json=json)
    else:
        console.show_result(workflow.run(names, options, scale, workspace, report_writer()), show, json=json)


def report_writer() -> "ReportWriter":
    """Return the functions that write a report and plot its figures."""
    from txlcli.report import attention_plots, figures, pages
    from txlcli.workflows.reproduction.runner import ReportWriter

    return ReportWriter(
        write=pages.write_report,
        plot_recl={"figure3": figures.plot_gains, "figure4": figures.plot_perplexities},
        plot_attention=attention_plots.plot_figure,
    )


def show(result: "ReproduceResult") -> None:
    """Write tables and claims to stdout."""
    for section in result.sections.values():
        for grid in section.grids:
            captions = [grid.caption] if grid.caption else []
            console.show_table(section.title, grid.columns, grid.rows, captions)
        for claim in section.claims:
            console.show_line(f"{claim.verdict}: {claim.text} ({claim.detail})")
        if section.grids or section.claims:
            console.show_line("")
    console.show_line(f"report: {', '.join(result.report)}")


def show_costs(result: "CostsResult") -> None:
    """Write the numbers of training runs to stdout."""
    columns = ("item", "training runs", "missing", "steps", "tokens")
    lines = []
    for row in result.items:
        lines.append([row.item, f"{row.models:,}", f"{row.missing:,}", f"{row.steps:,}", f"{row.tokens:,}"])
    note = "Steps and tokens: of the missing training runs. Models that several items need count for each."
    console.show_table(f"{result.scale} scale", columns, lines, [result.description, note])
