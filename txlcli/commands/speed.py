"""`txl speed`: speed-up of prediction by memory (Table 9), and the throughput of everything else."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from txlcli import completion, console
from txlcli.config import recipe
from txlcli.errors import UnknownNameError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    Attention,
    DataDir,
    Device,
    Json,
    Overrides,
    Plot,
    Precision,
    RunsDir,
    parse_lengths,
)
from txlcli.paper.published import SLOWDOWN_BY_ATTN_LEN
from txlcli.runs import run_directory

TABLE_9 = ",".join(map(str, SLOWDOWN_BY_ATTN_LEN))


def speed(
    subject: Annotated[
        str | None,
        Argument(
            metavar="RUN|RECIPE",
            help="Run, or recipe with random weights, to time [default: the most recent run].",
            autocompletion=completion.runs_and_recipes,
        ),
    ] = None,
    attn_len: Annotated[
        str | None,
        Option(
            metavar="N,N,...",
            help=f"Attention lengths to compare at [default: {TABLE_9}, or the longest that the model allows].",
        ),
    ] = None,
    repeat: Annotated[int, Option(min=1, help="Repetitions; the table shows the median.")] = 3,
    plot: Plot = None,
    overrides: Overrides = None,
    device: Device = "auto",
    precision: Precision = None,
    attention: Attention = None,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Time a model with and without memory.

    Also times training, evaluation and generation, as shares of the machine's peak rate. Speed does not depend on the
    weights, so a recipe gives the same result as a run.

    Example: txl speed stdlib --attn-len 128,256,512
    """
    attn_lens = None if attn_len is None else parse_lengths("--attn-len", attn_len, least=2)
    if subject is not None and not run_directory.is_run(subject, runs_dir):
        _check_recipe(subject, overrides or [], runs_dir)
    from txlcli.views import speed_table
    from txlcli.workflows import speed as workflow
    from txlcli.workflows.workspace import Workspace

    options = workflow.SpeedOptions(
        attn_lens=attn_lens,
        repeat=repeat,
        overrides=overrides or [],
        attention=attention,
        plotted=plot is not None,
    )
    reporter = console.TerminalReporter(bars=not json)
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, precision=precision, reporter=reporter)
    result = workflow.measure(subject, options, workspace)
    if plot is not None:
        speed_table.plot_times(plot, result)
    console.show_result(result, speed_table.show, json=json)


def _check_recipe(subject: str, overrides: list[str], runs_dir: Path) -> None:
    """Refuse a name that is neither a run nor a recipe, and wrong settings, before PyTorch is imported.

    Raises:
        UnknownNameError: there is no such run or recipe.
        RecipeError: the recipe or a change is not valid.
    """
    packaged = recipe.packaged_names()
    if not Path(subject).exists() and Path(subject).name.removesuffix(".toml") not in packaged:
        known, listing = [*run_directory.names(runs_dir), *packaged], '"txl runs" and "txl recipes" list all'
        raise UnknownNameError("run or recipe", subject, known, like=Path(subject).name, listing=listing)
    recipe.load(subject, overrides)
