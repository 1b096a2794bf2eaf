"""`txl reproduce`: the paper's tables and figures, our numbers beside the paper's."""

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Device, Json, RunsDir
from txlcli.errors import UsageError
from txlcli.workflows.reproduction.names import NAMES, select


def reproduce(
    item_names: Annotated[
        list[str] | None,
        Argument(
            metavar="ITEM...",
            help="table1 to table10, figure3 to figure7, appendix-e, or all of these; frontier goes beyond the paper.",
            autocompletion=completion.reproductions,
        ),
    ] = None,
    scale: Annotated[
        Literal["tiny", "small", "paper"],
        Option(help="tiny: minutes on two cores; small: one GPU; paper: as published."),
    ] = "tiny",
    seeds: Annotated[int, Option(min=1, help="Trainings per model, whose results are averaged.")] = 1,
    out: Annotated[Path | None, Option(help="Folder of the report [default: reproduction-SCALE].")] = None,
    listed: Annotated[
        bool, Option("--list", help="List the items with the cost of missing trainings, and stop.")
    ] = False,
    device: Device = "auto",
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Reproduce the paper's tables and figures.

    Prepares the texts, trains and evaluates whatever is missing, and writes report.md and report.html with our numbers
    beside the paper's. Finished runs and evaluations are reused, interrupted runs resumed. frontier compares recurrence
    with other memories, positions and blocks.

    Example: txl reproduce table6
    """
    names = select(item_names or (NAMES if listed else []))
    if not names:
        raise UsageError('give a table or figure, such as "txl reproduce table6"; --list shows all of them')
    from txlcli.commands import attention_plots, plots, recl, reproduction_report
    from txlcli.workflows.reproduction import scales
    from txlcli.workflows.reproduction.costs import Costs
    from txlcli.workflows.reproduction.reproduce import reproduce as reproduce_items
    from txlcli.workflows.reproduction.runner import Plots, Runner
    from txlcli.workflows.workspace import Workspace

    size = scales.get(scale, has_ptb=(data_dir / "ptb.h5").is_file())
    reporter = console.TerminalReporter()
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, reporter=reporter)
    if listed:
        costs = Costs(size, workspace, seeds=seeds)
        rows = [costs.of(name) for name in names]
        if json:
            console.show_json(
                {"scale": size.name, "peak_flops_per_s": costs.peak, "items": [vars(row) for row in rows]}
            )
        else:
            reproduction_report.show_costs(rows, costs, size)
        return
    directory = out if out is not None else Path(f"reproduction-{scale}")
    figures = Plots(
        curves=partial(plots.plot_curves, log_x=True),
        recl_gains=recl.plot_gains,
        recl_perplexities=recl.plot_perplexities,
        attention=attention_plots.plot_figure,
    )
    make_runner = partial(Runner, scale=size, n_seeds=seeds, workspace=workspace, directory=directory, plots=figures)
    render = partial(reproduction_report.render, scale_name=scale, directory=directory)
    sections = reproduce_items(names, directory, scale, make_runner, render)
    if json:
        console.show_json(reproduction_report.to_json(directory, sections))
    else:
        reproduction_report.show(directory, sections)
