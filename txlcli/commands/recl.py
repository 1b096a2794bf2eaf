"""`txl recl`: relative effective context length (RECL) of a group of runs (section 4.3, Appendix C)."""

from functools import partial
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import (
    DATA_DIR,
    RUNS_DIR,
    DataDir,
    Device,
    Json,
    Plot,
    Precision,
    RunsDir,
    Seed,
    Unfinished,
    Verbose,
    check_figure,
)
from txlcli.errors import UsageError
from txlcli.runs import run_directory


def recl(
    run_names: Annotated[
        list[str], Argument(metavar="RUN...", help="Runs to compare; one is enough.", autocompletion=completion.runs)
    ],
    split: Annotated[str, Option(help="valid or test.")] = "test",
    start: Annotated[int, Option(min=1, help="Shortest context length, in tokens.")] = 100,
    step: Annotated[int, Option(min=1, help="Step to the next context length, in tokens.")] = 100,
    longest: Annotated[
        int | None, Option(min=1, help="Longest context length, in tokens [default: nine steps from --start].")
    ] = None,
    top_r: Annotated[
        str, Option(metavar="R,R,...", help="Compare on these shares of the hardest positions.")
    ] = "0.1,0.5,1.0",
    threshold: Annotated[
        float, Option(help="Smallest relative gain of perplexity that counts; 1 % in the paper.")
    ] = 0.01,
    positions: Annotated[
        int | None, Option(min=1, help="Score N positions, sampled with --seed [default: 2,000 at most].")
    ] = None,
    batch_size: Annotated[
        int | None, Option(min=1, help="Contexts evaluated at once; changes speed and memory.")
    ] = None,
    losses: Annotated[
        Path | None, Option(metavar="FILE.h5", help="File of all losses [default: recl.h5 in --runs-dir].")
    ] = None,
    plot: Plot = None,
    plot_ppl: Annotated[
        Path | None,
        Option(callback=check_figure, help="Also plot perplexity by context length to this file (Figure 4)."),
    ] = None,
    unfinished: Unfinished = False,
    seed: Seed = 1111,
    device: Device = "auto",
    precision: Precision = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    verbose: Verbose = False,
    json: Json = False,
) -> None:
    """Measure how much context models use (RECL).

    Relative effective context length, as in Table 8: the context length beyond which one more step improves perplexity
    by less than 1 %, on the hardest positions, compared with the best model of the group. --plot plots the gains for
    the first r (Figure 3).

    Example: txl recl stdlib vanilla-stdlib --start 16 --step 16 --positions 500
    """
    for name in run_names:  # a wrong name is reported before PyTorch is imported
        run_directory.find(name, runs_dir)
    from txlcli.views import recl_table
    from txlcli.workflows.recl.measure import ReclOptions, measure
    from txlcli.workflows.workspace import Workspace

    options = ReclOptions(
        split=split,
        start=start,
        step=step,
        longest=longest,
        top_r=_parse_shares(top_r),
        threshold=threshold,
        positions=positions,
        seed=seed,
        batch_size=batch_size,
        unfinished=unfinished,
    )
    reporter = console.TerminalReporter(bars=not json)
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, precision=precision, reporter=reporter)
    result = measure(run_names, options, workspace, losses=losses)
    console.show_result(result, partial(recl_table.show, verbose=verbose), json=json)
    if plot is not None:
        recl_table.plot_gains(plot, result)
    if plot_ppl is not None:
        recl_table.plot_perplexities(plot_ppl, result)


def _parse_shares(text: str) -> tuple[float, ...]:
    try:
        return tuple(dict.fromkeys(float(part) for part in text.split(",")))
    except ValueError:
        raise UsageError(f"--top-r {text}: write numbers like 0.1,0.5,1.0") from None
