"""Locks between processes: one writer per file, and temporary folders that outlive no process."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from txlcli.errors import BusyError


@contextmanager
def exclusive(lock: Path, busy: str) -> Iterator[None]:
    """Hold a lock file while the block runs; the file is kept, since other processes may be waiting for it.

    In a folder that cannot be written, or on a file system without locks, the block runs without a lock.

    Raises:
        BusyError: another process holds the lock; `busy` is the message.
    """
    held = FileLock(lock)
    try:
        if lock.parent.is_dir():  # FileLock would create the folder
            held.acquire(blocking=False)
    except Timeout:
        with contextlib.suppress(OSError):  # filelock also times out where the system creates no file, as in /proc
            lock.touch()
            raise BusyError(busy) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        held.release()


@contextmanager
def if_free(lock: Path) -> Iterator[bool]:
    """Hold a lock file while the block runs, and yield True, if no other process holds it for certain."""
    held = FileLock(lock)
    with contextlib.suppress(Timeout, OSError, NotImplementedError):
        if lock.parent.is_dir():
            held.acquire(blocking=False)
    try:
        yield held.is_locked
    finally:
        held.release()


@contextmanager
def temporary_folder(parent: Path, prefix: str) -> Iterator[Path]:
    """Create an empty folder in `parent` and remove it when the block ends.

    Folders with the same prefix whose process was killed are removed first: their locks are free.

    Raises:
        OSError: the folder cannot be created.
    """
    remove_abandoned(parent, prefix)
    folder = parent / f"{prefix}{uuid.uuid4().hex[:8]}"
    lock = FileLock(_lock_of(folder))
    with contextlib.suppress(OSError, NotImplementedError):  # without locks, abandoned folders are not removed either
        lock.acquire(blocking=False)  # before the folder exists, so that another process never finds it unlocked
    try:
        folder.mkdir()
        yield folder
    finally:
        _remove(folder, lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the temporary folders of killed processes from `parent`: their locks are free."""
    names = {path.name.removesuffix(".lock") for path in parent.glob(f"{prefix}*")}
    for folder in (parent / name for name in names):
        lock = FileLock(_lock_of(folder))
        with contextlib.suppress(Timeout, OSError, NotImplementedError):
            lock.acquire(blocking=False)
            _remove(folder, lock)


def _remove(folder: Path, lock: FileLock) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.release()
    with contextlib.suppress(OSError):  # another process has the lock file open
        _lock_of(folder).unlink()


def _lock_of(folder: Path) -> Path:
    return folder.with_name(folder.name + ".lock")
