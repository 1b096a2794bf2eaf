"""The folder of an export: refuses folders of other programs, and is filled completely or not at all."""

import shutil
from collections.abc import Callable, Collection
from pathlib import Path

from txlcli.errors import ExportError
from txlcli.system.atomic_files import sync_file

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
        raise ExportError(f"{folder} holds {other}, which no export wrote; give another folder, or empty this one")
    if (folder.exists() and not folder.is_dir()) or (held and not force):
        raise ExportError(f"{folder} exists; give another folder, or replace an earlier export with --force")


def fill(folder: Path, files: Collection[str], write: Callable[[Path], None]) -> list[str]:
    """Write the files of an export and remove those of an earlier one; return their names.

    The files are written to a draft folder first, so that an error leaves the earlier export as it was.

    Args:
        folder: need not exist.
        files: names of the files that exports of this format may write.
        write: writes the files into the folder that it is given.

    Raises:
        ExportError: the folder cannot be written.
    """
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
        raise ExportError(f"{folder}: cannot be written ({error}); check the folder and the free space") from error
    finally:
        shutil.rmtree(folder if is_new else draft, ignore_errors=True)
