"""Writes files atomically: a reader sees the old file or the complete new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txlcli.errors import UsageError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path` that replaces it if the block succeeds, and is removed otherwise.

    The new file has the default permissions, even if the block changes those of the temporary file.

    Raises:
        OSError: the file cannot be written or renamed; an existing file at `path` is unchanged.
    """
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        beside.touch()
        mode = beside.stat().st_mode
        yield beside
        if beside.stat().st_mode != mode:
            beside.chmod(mode)
        sync_file(beside)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise


def sync_file(path: Path) -> None:
    """Flush a file to disk, so that it is not empty after a power failure once it has been renamed."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def check_folder(path: Path, asked: str) -> None:
    """Refuse the path of an output file whose folder is missing or read-only, before anything is computed for it.

    Args:
        path: the output file, which need not exist.
        asked: the option and value that the user gave; the error begins with it.

    Raises:
        UsageError: the folder does not exist, or cannot be written to.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{asked}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{asked}: the folder {path.parent} cannot be written; name another")
