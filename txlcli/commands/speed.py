"""`txl speed`: speed-up of prediction by memory (Table 9), and the throughput of everything else."""

from typing import Annotated

import typer

from txlcli import console
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    AttentionOption,
    DataDir,
    Device,
    DeviceOption,
    Json,
    Overrides,
    Plot,
    PrecisionOption,
    RunsDir,
    parse_lengths,
)
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.views import speed_table
from txlcli.workflows import speed as workflow
from txlcli.workflows.speed import SpeedOptions

TABLE_9 = ",".join(map(str, SLOWDOWN_BY_ATTN_LEN))


def speed(
    subject: Annotated[
        str | None,
        typer.Argument(
            metavar="[RUN|RECIPE]", help="Run, or recipe with random weights, to time [default: the most recent run]."
        ),
    ] = None,
    attn_len: Annotated[
        str | None,
        typer.Option(
            "--attn-len",
            metavar="N,N,...",
            help=f"Attention lengths to compare at [default: {TABLE_9}, or the longest that the model allows].",
        ),
    ] = None,
    repeat: Annotated[int, typer.Option("--repeat", min=1, help="Repetitions; the table shows the median.")] = 3,
    plot: Plot = None,
    overrides: Overrides = None,
    device: DeviceOption = Device.auto,
    precision: PrecisionOption = None,
    attention: AttentionOption = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Time a model with and without memory.

    Also times training, evaluation and generation, as shares of the machine's peak rate. Speed does not depend on the
    weights, so a recipe gives the same result as a run.

    Example: txl speed stdlib --attn-len 128,256,512
    """
    from txlcli.views import plots

    if plot is not None:
        plots.check_path(plot)
    options = SpeedOptions(
        attn_lens=None if attn_len is None else parse_lengths("--attn-len", attn_len, least=2),
        repeat=repeat,
        overrides=overrides or [],
        attention=attention.value if attention else None,
        plotted=plot is not None,
    )
    result = workflow.measure(
        subject,
        options,
        device=device.value,
        precision=precision.value if precision else None,
        data_dir=data_dir,
        runs_dir=runs_dir,
        reporter=console.TerminalReporter(bars=not json),
    )
    if plot is not None:
        speed_table.plot_times(plot, result)
    if json:
        console.show_json(result)
    else:
        speed_table.show(result)
