"""Reads the files that the user names: regular files only, and texts up to a documented size."""

import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from txlcli.errors import UsageError

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30
MAX_SETTINGS = 256 * KIB
"""Largest recipe, configuration or prompt, in bytes."""
MAX_REPORT = 64 * MIB
"""Largest JSON file of `txl reproduce`, in bytes."""
MAX_VOCABULARY = 256 * MIB
"""Largest vocabulary, in bytes."""
MAX_TEXT = GIB
"""Largest text of `txl eval --text`, in bytes; it is held in memory."""


def check_regular(path: Path) -> Path:
    """Return a path that is not a pipe, socket or device, which may never end.

    A missing path and a directory are left to the reader of the path.
    """
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return path
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        raise UsageError(
            f"{path} is a pipe, socket or device, not a regular file; save its content to a file and name that"
        )
    return path


@contextmanager
def utf8_path(path: Path) -> Iterator[Path]:
    """Yield a path for a library that takes UTF-8 only: on Linux, directories may have other names."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            yield Path(f"/proc/self/fd/{directory}", path.name)
        finally:
            os.close(directory)
    else:
        yield path


@contextmanager
def errors_of_reading(name: object) -> Iterator[None]:
    """Raise a UsageError that names a file of the user's if it cannot be read."""
    try:
        yield
    except OSError as error:
        raise UsageError(f"{name}: cannot be read ({error.strerror}); check the path") from error


def read_bytes(path: Path, max_bytes: int) -> bytes:
    """Read a regular file of at most `max_bytes`."""
    with check_regular(path).open("rb") as file:
        return read_stream(file, max_bytes, str(path))


def read_stream(file: IO[bytes], max_bytes: int, name: str) -> bytes:
    """Read a stream of at most `max_bytes`; `name` begins the error."""
    data = file.read(max_bytes + 1)
    check_size(len(data), max_bytes, name)
    return data


def check_size(size: int, max_bytes: int, name: str) -> None:
    """Reject more than `max_bytes`; `name` begins the error."""
    if size > max_bytes:
        limit = f"{max_bytes // MIB} MiB" if max_bytes >= MIB else f"{max_bytes // KIB} KiB"
        raise UsageError(f"{name}: larger than {limit}, the limit of such a text; give a smaller one")


def read_stdin(max_bytes: int) -> bytes:
    """Read stdin, which "-" stands for, up to `max_bytes`."""
    return read_stream(sys.stdin.buffer, max_bytes, "stdin")


def read_text(path: Path, max_bytes: int) -> str:
    """Read a regular file of at most `max_bytes` as UTF-8, without a byte order mark, with line ends "\\n"."""
    return read_bytes(path, max_bytes).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
