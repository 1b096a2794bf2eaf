"""Options that several commands share, each with one name and one help text."""

import sys
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, CallbackParam, Option

from txlcli import completion
from txlcli.config.ranges import MOST_COUNT
from txlcli.config.settings import MOST_SEED, AttentionBackend
from txlcli.errors import UsageError
from txlcli.system import command_lines
from txlcli.system.atomic_files import check_folder
from txlcli.system.input_files import read_stream

DATA_DIR, RUNS_DIR = command_lines.DATA_DIR, command_lines.RUNS_DIR
FIGURE_FORMATS = (".png", ".svg", ".pdf")
PrecisionName = Literal["fp32", "tf32", "bf16", "fp16"]

Run = Annotated[
    str | None,
    Argument(metavar="RUN", help="Name or folder of a run [default: the most recent].", autocompletion=completion.runs),
]
DataDir = Annotated[Path, Option("--data-dir", envvar=command_lines.DATA_VARIABLE, help="Folder of the token stores.")]
RunsDir = Annotated[Path, Option("--runs-dir", envvar=command_lines.RUNS_VARIABLE, help="Folder of the training runs.")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON on stdout.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print all notes under a table.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], Option("--device", help="Device; auto uses CUDA if available.")]
Precision = Annotated[
    PrecisionName | None, Option("--precision", help="Precision of matrix products [default: as trained].")
]
Attention = Annotated[
    AttentionBackend | None, Option("--attention", help="Attention backend; all compute the same function.")
]
Seed = Annotated[int, Option("--seed", min=0, max=MOST_SEED, help="Random seed.")]
Force = Annotated[bool, Option("--force", help="Overwrite existing results.")]
Unfinished = Annotated[bool, Option("--unfinished", help="Also accept a run whose training is not finished.")]
Overrides = Annotated[
    list[str] | None,
    Option(
        "--set",
        metavar="SECTION.KEY=VALUE",
        autocompletion=completion.settings,
        help="Override a setting of the recipe; repeatable.",
    ),
]


def check_figure(param: CallbackParam, path: Path | None) -> Path | None:
    """Refuse a path that no figure can be written to, before anything is computed for it.

    Raises:
        UsageError: unknown extension, or a folder that does not exist or is not writable.
    """
    if path is not None:
        given = f"{param.opts[0]} {path}"
        if path.suffix.lower() not in FIGURE_FORMATS:
            *others, last = FIGURE_FORMATS
            raise UsageError(f"{given}: unknown figure format; use the extension {', '.join(others)} or {last}")
        check_folder(path, given)
    return path


Plot = Annotated[
    Path | None,
    Option("--plot", callback=check_figure, help="Also plot the result to this .png, .svg or .pdf file."),
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


def read_stdin(most: int) -> bytes:
    """Read stdin, which "-" stands for, up to `most` bytes.

    Raises:
        UsageError: it is closed, or has more.
    """
    if sys.stdin is None:
        raise UsageError("-: stdin is closed; send the text there, or name a file")
    return read_stream(sys.stdin.buffer, most, "stdin")
