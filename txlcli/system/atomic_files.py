"""Writes files atomically: a reader sees the old file or the complete new one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from txlcli.errors import TxlError, UsageError


@contextmanager
def replacing(path: Path, draft: Path | None = None) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` if the block succeeds, and is removed otherwise.

    The new file has the default permissions, even if the block changes those of the temporary file, which is next to
    `path`, or `draft` on the same file system.
    """
    if draft is None:
        draft = path.with_name(f".{path.name}.new")
    try:
        draft.unlink(missing_ok=True)
        draft.touch()
        mode = draft.stat().st_mode
        yield draft
        if draft.stat().st_mode != mode:
            draft.chmod(mode)
        sync_file(draft)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


@contextmanager
def errors_of_writing(path: Path) -> Iterator[None]:
    """Raise a TxlError that names a file if it cannot be written: the error of a write names none."""
    try:
        yield
    except OSError as error:
        raise TxlError(f"{path}: cannot be written ({error.strerror}); check the folder and the free space") from error


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8, or replace it; bytes of a path that are not UTF-8 are written as escapes."""
    with errors_of_writing(path), replacing(path) as draft:
        draft.write_text(text, encoding="utf-8", errors="backslashreplace")


def sync_file(path: Path) -> None:
    """Flush a file to disk, so that it is not empty after a power failure once it has been renamed."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())


def check_output(path: Path, option: str) -> None:
    """Reject the path of an output file that cannot be written, before anything is computed for it.

    A new file would take the place of a pipe, a socket or a device such as /dev/null. The error begins with the option
    and value that the user gave, `option`.
    """
    if path.exists() and not path.is_file():
        raise UsageError(f"{option} is a folder, pipe or device; name a regular file")
    folder = path.parent
    if not (folder.is_dir() and os.access(folder, os.W_OK)):
        raise UsageError(f"{option}: the folder {folder} is missing, or cannot be written; make it, or name another")
