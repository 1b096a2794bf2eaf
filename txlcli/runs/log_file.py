"""Files of reports, metrics.jsonl and evals.jsonl: one JSON object per line, each with a checksum of its own.

Lines can be appended while others read the file, and a killed process leaves at most one incomplete line.
"""

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from txlcli.errors import RecipeError, RunError, UnknownKeyError
from txlcli.system.checkpoint_header import digest
from txlcli.system.input_files import MIB, check_regular, read_text
from txlcli.system.plain_json import parse_json

Record = dict[str, Any]
DIGITS = 16
MAX_BYTES = 256 * MIB
"""Largest file: reports of a million steps, one line each."""
CHECKSUM = "checksum"
"""Key of a line; it is not part of the report."""


def to_line(report: Record) -> str:
    """Return a report as a line of a file, with its line end."""
    return json.dumps({**report, CHECKSUM: _checksum_of(report)}) + "\n"


def from_line(line: str) -> Record:
    """Return the report of a line; a damaged line is a ValueError."""
    report = parse_json(line)
    if not isinstance(report, dict) or report.pop(CHECKSUM, None) != _checksum_of(report):
        raise ValueError("wrong checksum")
    return report


def _checksum_of(report: Record) -> str:
    return digest(json.dumps(report).encode())[:DIGITS]


def append(path: Path, reports: Iterable[Record]) -> None:
    """Append reports to a file, which need not exist; a killed process may have left a truncated line at its end."""
    text = "".join(map(to_line, reports)).encode()
    with path.open("ab+") as file:
        file.seek(max(0, file.tell() - 1))
        if file.read() not in (b"", b"\n"):
            text = b"\n" + text
        file.write(text)  # at once, so that processes do not mix their lines


def read(path: Path, *, skip_truncated: bool = False) -> tuple[Record, ...]:
    """Read the reports of a file; a missing file has none. Text after its last line end is ignored.

    With `skip_truncated`, lines that a process could not finish and that other processes wrote after are ignored, too.
    """
    if not check_regular(path).exists():
        return ()
    with reading(path):
        lines = read_text(path, MAX_BYTES).split("\n")[:-1]
    reports = []
    for number, line in enumerate(lines, 1):
        try:
            reports.append(from_line(line))
        except ValueError as error:
            is_truncated = line.startswith("{") and not line.endswith("}")
            if not (skip_truncated and is_truncated):
                raise RunError(f"{path}: line {number} is damaged; delete that line to read the others") from error
    return tuple(reports)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Raise a RunError if the block cannot read a file of a run, or finds that it is damaged."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"{path}: cannot be read ({error.strerror or error}); check its permissions, or restore it from a copy"
        ) from error
    except UnknownKeyError as error:
        raise RunError(f"{path}: written by a newer txl ({error}); update txl to read it") from error
    except (RecipeError, ValueError, LookupError, TypeError, AttributeError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else error
        raise RunError(f"{path}: damaged ({reason}); restore it from a copy") from error
