"""Options that several commands share, each with one name and one help text."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from txlcli.config.ranges import MOST_COUNT
from txlcli.config.settings import MOST_SEED
from txlcli.errors import UsageError
from txlcli.system import command_lines

DATA_DIR, RUNS_DIR = command_lines.DATA_DIR, command_lines.RUNS_DIR


class Device(StrEnum):
    """Device of the tensors."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    """Precision of matrix products."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Attention(StrEnum):
    """Backend that computes attention."""

    auto = "auto"
    reference = "reference"
    sdpa = "sdpa"
    flex = "flex"


DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder of the token stores.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of the training runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="Device; auto uses CUDA if available.")]
PrecisionOption = Annotated[
    Precision | None, typer.Option("--precision", help="Precision of matrix products [default: as trained].")
]
AttentionOption = Annotated[
    Attention | None,
    typer.Option("--attention", help="Attention backend; all compute the same function."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Random seed.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite existing results.")]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Also accept a run whose training is not finished.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Also plot the result to this .png, .svg or .pdf file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting of the recipe; repeatable."),
]


def parse_lengths(option: str, text: str, *, least: int) -> list[int]:
    """Parse lengths without duplicates, in the given order: `0,160,640` -> [0, 160, 640].

    Raises:
        UsageError: one is not a whole number, is below `least`, or is too large.
    """
    lengths = []
    for part in text.split(","):
        try:
            length = int(part)
        except ValueError:
            raise UsageError(f"{option} {text}: {part!r} is no whole number; write lengths like 160,640") from None
        if length < least:
            raise UsageError(f"{option} {text}: a length cannot be below {least}")
        if length > MOST_COUNT:
            raise UsageError(f"{option} {text}: a length cannot be above {MOST_COUNT}")
        lengths.append(length)
    return list(dict.fromkeys(lengths))


def read_stdin() -> bytes:
    """Read stdin, which "-" stands for.

    Raises:
        UsageError: it is closed.
    """
    if sys.stdin is None:
        raise UsageError("-: stdin is closed; send the text there, or name a file")
    return sys.stdin.buffer.read()
