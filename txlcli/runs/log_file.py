"""Files of reports, metrics.jsonl and evals.jsonl: one JSON object per line, each with a checksum of its own.

Lines can be appended while others read the file, and a killed process leaves at most one incomplete line. Earlier
versions wrote no checksums; lines without one are accepted.
"""

import json
import string
from collections.abc import Callable, Iterable
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
    """Return the report of a line.

    Raises:
        ValueError: the line is damaged.
    """
    report = parse_json(line)
    if not isinstance(report, dict):
        raise ValueError("not an object")
    checksum = report.pop(CHECKSUM, None)
    wrong = checksum != _checksum_of(report)
    if wrong and (checksum is not None or _ends_like_a_checksum(report)):
        raise ValueError("wrong checksum")
    return report


def _checksum_of(report: Report) -> str:
    return digest(json.dumps(report).encode())[:DIGITS]


def _ends_like_a_checksum(report: Report) -> bool:
    """Return True if the last value is like a checksum: damage has changed its key."""
    last = str(next(reversed(report.values()), ""))
    return len(last) == DIGITS and set(last) <= set(string.hexdigits)


def append(path: Path, reports: Iterable[Report]) -> None:
    """Append reports to a file, which need not exist.

    Raises:
        OSError: the file cannot be written.
    """
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


def read(path: Path, is_valid: Callable[[Report], bool], *, skip_truncated: bool = False) -> tuple[Report, ...]:
    """Read the reports of a file; a missing file has none.

    Args:
        path: of the file; text after its last line end is incomplete, and is ignored.
        is_valid: False for a report that lacks a key or has a value of another type.
        skip_truncated: ignore lines that a process could not finish and that other processes wrote after.

    Raises:
        RunError: the file cannot be read, or a line is damaged.
    """
    try:
        text = _read_bytes(path).decode()
    except FileNotFoundError:
        return ()
    except UnicodeDecodeError as error:
        raise RunError(f"{path}: damaged (not UTF-8 text); restore it from a copy, or delete it") from error
    except OSError as error:
        raise RunError(f"{path}: cannot be read ({error}); restore it from a copy, or delete it") from error
    lines = enumerate(text.split("\n")[:-1], 1)
    return tuple(
        _read_line(path, number, line, is_valid)
        for number, line in lines
        if not (skip_truncated and _is_truncated(line))
    )


def _read_bytes(path: Path) -> bytes:
    with check_regular(path).open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise RunError(
            f"{path}: larger than {MAX_BYTES // MIB} MiB; restore it from a copy, or delete its oldest lines"
        )
    return data


def _read_line(path: Path, number: int, line: str, is_valid: Callable[[Report], bool]) -> Report:
    try:
        report = from_line(line)
        valid = is_valid(report)
    except ValueError:
        valid = False
    if not valid:
        raise RunError(f"{path}: line {number} is damaged; delete that line to read the others")
    return report


def _is_truncated(line: str) -> bool:
    """Return True if a line is the beginning of a JSON object."""
    try:
        parse_json(line)
    except json.JSONDecodeError as error:
        ended = error.pos >= len(line) or error.msg.startswith("Unterminated string")
        return line.startswith("{") and (ended or not line.endswith("}"))
    except ValueError:
        pass
    return False


def lines_before(path: Path, *, step: int, validated: int) -> list[str] | None:
    """Return the lines with reports of training up to `step` and of validations up to `validated`, unchanged.

    A truncated last line does not belong to them. None without a file.

    Raises:
        OSError: the file cannot be read.
        RunError: it is larger than any report.
        UsageError: it is a special file.
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
