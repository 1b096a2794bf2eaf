"""Files of reports, metrics.jsonl and evals.jsonl: one JSON object per line, each with a checksum of its own.

Lines can be appended while others read the file, and a killed process leaves at most one incomplete line.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from txlcli.errors import RunError
from txlcli.system.checkpoint_header import digest
from txlcli.system.input_files import MIB, check_regular
from txlcli.system.plain_json import parse_json

Report = dict[str, Any]
DIGITS = 16
MAX_BYTES = 256 * MIB
"""Largest file: reports of a million steps, one line each."""
CHECKSUM = "checksum"
"""Key of a line; it is not part of the report."""


def to_line(report: Report) -> str:
    """Return a report as a line of a file, with its line end."""
    return json.dumps({**report, CHECKSUM: _checksum_of(report)}) + "\n"


def from_line(line: str) -> Report:
    """Return the report of a line; a damaged line is a ValueError."""
    report = parse_json(line)
    if not isinstance(report, dict) or report.pop(CHECKSUM, None) != _checksum_of(report):
        raise ValueError("wrong checksum")
    return report


def _checksum_of(report: Report) -> str:
    return digest(json.dumps(report).encode())[:DIGITS]


def append(path: Path, reports: Iterable[Report]) -> None:
    """Append reports to a file, which need not exist."""
    text = "".join(map(to_line, reports))
    with path.open("ab") as file:  # in a single write, so that processes that write together do not mix their lines
        file.write(text.encode() if _ends_a_line(path) else b"\n" + text.encode())


def _ends_a_line(path: Path) -> bool:
    """Return True if a file is empty or ends with a line end: a killed process may have left a truncated line."""
    with path.open("rb") as file:
        if not file.seek(0, 2):
            return True
        file.seek(-1, 2)
        return file.read() == b"\n"


def read(path: Path, *, skip_truncated: bool = False) -> tuple[Report, ...]:
    """Read the reports of a file; a missing file has none. Text after its last line end is ignored.

    With `skip_truncated`, lines that a process could not finish and that other processes wrote after are ignored, too.
    """
    try:
        text = _read_bytes(path).decode()
    except FileNotFoundError:
        return ()
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: damaged (not UTF-8 text); restore it from a copy, or delete it") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy, or delete it") from error
    reports = []
    for number, line in enumerate(text.split("\n")[:-1], 1):
        try:
            reports.append(from_line(line))
        except ValueError as error:
            is_truncated = line.startswith("{") and not line.endswith("}")
            if not (skip_truncated and is_truncated):
                raise RunError(f"{path}: line {number} is damaged; delete that line to read the others") from error
    return tuple(reports)


def _read_bytes(path: Path) -> bytes:
    with check_regular(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RunError(
            f"{path}: larger than {MAX_BYTES // MIB} MiB; restore it from a copy, or delete its oldest lines"
        )
    return data


def lines_before(path: Path, *, step: int, validated: int) -> list[str] | None:
    """Return the lines with reports of training up to `step` and of validations up to `validated`, unchanged.

    A truncated last line does not belong to them. None without a file.
    """
    if not check_regular(path).exists():
        return None
    lines = _read_bytes(path).decode(errors="replace").splitlines()
    return [line for line in lines if _is_before(line, step=step, validated=min(step, validated))]


def _is_before(line: str, *, step: int, validated: int) -> bool:
    try:
        report = parse_json(line)
        return float(report["step"]) <= (validated if report.get("kind") == "valid" else step)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False
