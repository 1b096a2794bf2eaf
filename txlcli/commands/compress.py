"""`txl compress` and `txl decompress`: lossless compression with a run's predictions."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from txlcli import console
from txlcli.commands.completion import names_of
from txlcli.commands.options import Json
from txlcli.runs import run_directory
from txlcli.workflows.options import CompressOptions, DecompressOptions
from txlcli.workflows.workspace import CpuWorkspace, Workspace

RunToUse = Annotated[
    str, Argument(metavar="RUN", help="Run that predicts the bytes of the file.", autocompletion=names_of("runs"))
]


def compress(
    run_name: RunToUse,
    source: Annotated[Path, Argument(metavar="FILE", help="File to compress.")],
    target: Annotated[Path, Argument(metavar="OUT", help="Compressed file to write.")],
    options: CompressOptions,
    *,
    workspace: CpuWorkspace,
    json: Json = False,
) -> None:
    """Compress a file with a run's predictions.

    Arithmetic coding, on the CPU in fp32. Any file can be compressed; text like the training data becomes smallest.
    "txl decompress" restores every byte, with the same run, releases, and kind of processor.

    Example: txl compress runs/stdlib notes.py notes.txlz
    """
    # A wrong name is reported before PyTorch is imported.
    run_directory.find(run_name, workspace.runs_dir)
    from txlcli.workflows import compress as workflow

    result = workflow.compress(run_name, source, target, options, workspace)
    console.show_result(result, json=json)


def decompress(
    run_name: RunToUse,
    source: Annotated[Path, Argument(metavar="IN", help='File that "txl compress" wrote.')],
    target: Annotated[Path, Argument(metavar="OUT", help="File to write.")],
    options: DecompressOptions,
    *,
    workspace: Workspace,
    json: Json = False,
) -> None:
    """Restore a file that "txl compress" wrote.

    Nothing is written unless every byte is restored.

    Example: txl decompress runs/stdlib notes.txlz notes.py
    """
    run_directory.find(run_name, workspace.runs_dir)
    from txlcli.workflows import compress as workflow

    result = workflow.decompress(run_name, source, target, options, workspace)
    console.show_result(result, json=json)
