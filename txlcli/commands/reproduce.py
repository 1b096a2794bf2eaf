"""`txl reproduce`: the paper's tables and figures, our numbers next to the paper's."""

from typing import Annotated

from typer import Argument

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Device, Json, RunsDir, with_options
from txlcli.errors import UsageError
from txlcli.workflows.options import REPRODUCIBLE, ReproduceOptions, select_items


@with_options
def reproduce(
    options: ReproduceOptions,
    item_names: Annotated[
        list[str] | None,
        Argument(
            metavar="ITEM...",
            help="table1 to table10, figure3 to figure7, appendix-e, or all of these; frontier goes beyond the paper.",
            autocompletion=completion.reproductions,
        ),
    ] = None,
    device: Device = "auto",
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Reproduce the paper's tables and figures.

    Prepares the texts, trains and evaluates whatever is missing, and writes report.md and report.html with our numbers
    next to the paper's. Finished runs are reused, interrupted runs resumed. frontier compares
    recurrence with other memories, positions and blocks.

    Example: txl reproduce table6
    """
    names = select_items(item_names or (REPRODUCIBLE if options.list else []))
    if not names:
        raise UsageError('give a table or figure, such as "txl reproduce table6"; --list shows all of them')
    from txlcli.commands import reproduction_report
    from txlcli.workflows.reproduction import reproduce as workflow
    from txlcli.workflows.workspace import Workspace

    reporter = console.TerminalReporter()
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, reporter=reporter)
    if options.list:
        console.show_result(workflow.list_costs(names, options, workspace), reproduction_report.show_costs, json=json)
    else:
        result = workflow.run(names, options, workspace, reproduction_report.REPORT)
        console.show_result(result, reproduction_report.show, json=json)
