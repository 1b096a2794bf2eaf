"""`txl compress` and `txl decompress`: lossless compression with a run's predictions."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import DATA_DIR, RUNS_DIR, DataDir, Force, Json, RunsDir
from txlcli.runs import run_directory
from txlcli.views import compression as view

RunToUse = Annotated[
    str, Argument(metavar="RUN", help="Run that predicts the bytes of the file.", autocompletion=completion.runs)
]


def compress(
    run_name: RunToUse,
    source: Annotated[Path, Argument(metavar="FILE", help="File to compress.")],
    target: Annotated[Path, Argument(metavar="OUT", help="Compressed file to write.")],
    mem_len: Annotated[int | None, Option(min=0, help="Memory length M [default: the recipe's].")] = None,
    lanes: Annotated[
        int | None,
        Option(
            min=1, help="Parts coded side by side; more are faster and larger [default: one per 8 KiB, at most 64]."
        ),
    ] = None,
    dynamic: Annotated[
        bool, Option("--dynamic", help="Train on the text while coding (dynamic evaluation); slower and smaller.")
    ] = False,
    lane_cost: Annotated[
        bool, Option("--lane-cost", help="Also measure how many bits the lanes cost beyond a single one.")
    ] = False,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Compress a file with a run's predictions.

    Arithmetic coding, on the CPU in fp32. Any file can be compressed; text like the training data becomes smallest.
    "txl decompress" restores every byte, with the same run, release, and kind of processor.

    Example: txl compress runs/stdlib notes.py notes.txlz
    """
    run_directory.find(run_name, runs_dir, data_dir=data_dir)  # a wrong name is reported before PyTorch is imported
    from txlcli.workflows import compression as workflow
    from txlcli.workflows.workspace import Workspace

    options = workflow.CompressionOptions(mem_len=mem_len, lanes=lanes, dynamic=dynamic, lane_cost=lane_cost)
    reporter = console.TerminalReporter(bars=not json)
    workspace = workflow.exact_workspace(Workspace(data_dir=data_dir, runs_dir=runs_dir, reporter=reporter))
    result = workflow.compress(run_name, source, target, options, workspace, force=force)
    console.show_result(result, view.show_compressed, json=json)


def decompress(
    run_name: RunToUse,
    source: Annotated[Path, Argument(metavar="IN", help='File that "txl compress" wrote.')],
    target: Annotated[Path, Argument(metavar="OUT", help="File to write.")],
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Restore a file that "txl compress" wrote.

    Nothing is written unless every byte is restored.

    Example: txl decompress runs/stdlib notes.txlz notes.py
    """
    run_directory.find(run_name, runs_dir, data_dir=data_dir)  # a wrong name is reported before PyTorch is imported
    from txlcli.workflows import compression as workflow
    from txlcli.workflows.workspace import Workspace

    reporter = console.TerminalReporter(bars=not json)
    workspace = workflow.exact_workspace(Workspace(data_dir=data_dir, runs_dir=runs_dir, reporter=reporter))
    result = workflow.decompress(run_name, source, target, workspace, force=force)
    console.show_result(result, view.show_restored, json=json)
