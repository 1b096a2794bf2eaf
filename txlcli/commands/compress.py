"""`txl compress` and `txl decompress`: lossless compression with a run's predictions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.runs import run_directory
from txlcli.workflows.compress_options import CompressOptions, DecompressOptions
from txlcli.workflows.workspace import CpuWorkspace, Workspace

if TYPE_CHECKING:
    from txlcli.workflows.compress import CompressResult, DecompressResult

RunToUse = Annotated[str, argument("RUN", "Run that predicts the bytes of the file.", "runs")]


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

    Arithmetic coding, on the CPU in fp32. A run of bytes or characters compresses any text, another run only text that
    its vocabulary restores; text like the training data becomes smallest.
    "txl decompress" restores every byte, with the same run, releases, and kind of processor; with --portable, on any.

    Example: txl compress runs/stdlib notes.py notes.txlz
    """
    run = run_directory.find(run_name, workspace.runs_dir)
    from txlcli.workflows import compress as workflow

    result = workflow.compress(run, source, target, options, workspace)
    console.show_result(result, show_compressed, json=json)


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
    run = run_directory.find(run_name, workspace.runs_dir)
    from txlcli.workflows import compress as workflow

    result = workflow.decompress(run, source, target, options, workspace)
    console.show_result(result, show_restored, json=json)


def show_compressed(result: "CompressResult") -> None:
    """Write the sizes to stdout as a table."""
    packed = result.compressed_bytes
    predicted = result.predicted_bits / 8
    size = f"{result.bytes:,} bytes to {packed:,}"
    if result.bytes:
        size += f" ({100 * packed / result.bytes:.2f} %)"
    rows = [
        ["size", size],
        ["bits per byte", console.cell(result.bits_per_byte, ".4f")],
        ["by the predictions", f"{predicted:,.0f} bytes, and {packed - predicted:,.0f} of header and rounding"],
        ["L, M, lanes", f"{result.seg_len}, {result.mem_len}, {result.lanes}"],
    ]
    if result.escaped_symbols:
        rows.append(["not in the vocabulary", f"{result.escaped_symbols:,} symbols, coded by their numbers"])
    rows.append(["time", _rate(result)])
    console.show_table(f"{result.compressed}: {result.file} with {result.run}", ("", ""), rows)


def show_restored(result: "DecompressResult") -> None:
    """Write the size and the rate to stdout."""
    console.show_line(f"{result.file}: {result.bytes:,} bytes restored in {_rate(result)}")


def _rate(result: "DecompressResult") -> str:
    return f"{result.seconds:,.1f} s, {result.bytes / max(result.seconds, 1e-9):,.0f} bytes per second"
