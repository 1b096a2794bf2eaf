"""What two or more commands are asked: options of one name and one help text, and what is made of their words."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from txlcli.config.ranges import MOST_COUNT
from txlcli.config.settings import MOST_SEED
from txlcli.errors import UsageError
from txlcli.workflows import command_lines

DATA_DIR, RUNS_DIR = command_lines.DATA_DIR, command_lines.RUNS_DIR


class Device(StrEnum):
    """Where tensors live."""

    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"


class Precision(StrEnum):
    """The number format of matrix products."""

    fp32 = "fp32"
    bf16 = "bf16"
    fp16 = "fp16"


class Attention(StrEnum):
    """How attention is computed."""

    auto = "auto"
    reference = "reference"
    sdpa = "sdpa"
    flex = "flex"


DataDir = Annotated[Path, typer.Option("--data-dir", help="Folder of the token stores.")]
RunsDir = Annotated[Path, typer.Option("--runs-dir", help="Folder of the training runs.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on stdout.")]
DeviceOption = Annotated[Device, typer.Option("--device", help="auto takes CUDA where there is one.")]
PrecisionOption = Annotated[
    Precision | None, typer.Option("--precision", help="Number format of matrix products; the run's own by default.")
]
AttentionOption = Annotated[
    Attention | None,
    typer.Option("--attention", help="How attention is computed, always the same function; auto is txl's own."),
]
Seed = Annotated[int, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of everything random.")]
Force = Annotated[bool, typer.Option("--force", help="Overwrite what is there.")]
Unfinished = Annotated[bool, typer.Option("--unfinished", help="Take a run that has not taken all its steps, too.")]
Plot = Annotated[Path | None, typer.Option("--plot", help="Also draw the result to this .png, .svg or .pdf file.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Change one setting of the recipe; repeatable."),
]


def parse_lengths(option: str, text: str, *, least: int) -> list[int]:
    """`0,160,640` -> [0, 160, 640], each once, in the order given.

    Raises:
        UsageError: not whole numbers, or below `least`.
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
    """What is sent to stdin, as "-" asks for.

    Raises:
        UsageError: it is closed.
    """
    if sys.stdin is None:
        raise UsageError("-: stdin is closed; send the text there, or name a file")
    return sys.stdin.buffer.read()
