"""The folder of an export: refuses folders of other programs, and is filled completely or not at all."""

import contextlib
import os
import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from txlcli.errors import ExportError
from txlcli.system.atomic_files import sync_file
from txlcli.system.locks import exclusive

DRAFT = ".new"


def check_free(folder: Path, files: Collection[str], *, force: bool) -> None:
    """Refuse a folder that is not empty, unless `force` may replace an earlier export and nothing else is in it.

    Args:
        folder: need not exist.
        files: names of the files that exports of this format may write.
        force: replace an earlier export.

    Raises:
        ExportError: the folder is in use.
    """
    held = {path.name for path in folder.iterdir()} - {DRAFT} if folder.is_dir() else set()
    if held and force and not held <= set(files):
        other = min(held - set(files))
        raise ExportError(
            f"{folder} holds {other}, which no export of this format writes; give another folder, or empty this one"
        )
    if (folder.exists() and not folder.is_dir()) or (held and not force):
        raise ExportError(f"{folder} exists; give another folder, or replace an earlier export with --force")


def fill(folder: Path, files: Collection[str], write: Callable[[Path], None], *, force: bool) -> list[str]:
    """Write the files of an export and remove those of an earlier one; return their names.

    The files are written to a draft folder first, so that an error leaves the earlier export as it was.

    Args:
        folder: need not exist.
        files: names of the files that exports of this format may write.
        write: writes the files into the folder that it is given.
        force: replace an earlier export.

    Raises:
        ExportError: the folder cannot be written, or another process has filled it meanwhile.
        BusyError: another process fills it.
    """
    real = Path(os.path.realpath(folder))
    try:
        real.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_written(folder, error) from error
    lock = real.parent / f".{real.name}.lock"
    with exclusive(lock, f"{folder} is being written by another process; wait for it, or give another folder"):
        try:
            check_free(folder, files, force=force)
            return _fill(folder, files, write)
        finally:
            with contextlib.suppress(OSError):
                lock.unlink()


def _fill(folder: Path, files: Collection[str], write: Callable[[Path], None]) -> list[str]:
    is_new = not folder.exists()
    draft = folder / DRAFT
    try:
        shutil.rmtree(draft, ignore_errors=True)  # of an export that was killed
        draft.mkdir(parents=True)
        write(draft)
        written = sorted(path.name for path in draft.iterdir())
        for name in written:
            sync_file(draft / name)
        for name in written:
            (draft / name).replace(folder / name)
        for name in set(files) - set(written):
            (folder / name).unlink(missing_ok=True)
        is_new = False
        return written
    except OSError as error:
        raise _not_written(folder, error) from error
    finally:
        shutil.rmtree(folder if is_new else draft, ignore_errors=True)


def _not_written(folder: Path, error: OSError) -> ExportError:
    return ExportError(f"{folder}: cannot be written ({error.strerror or error}); check the folder and the free space")
