"""Locks between processes: one writer per file, and temporary directories that outlive no process."""

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

    In a directory that cannot be written, or on a file system without locks, the block runs without a lock.
    """
    held = FileLock(lock)
    try:
        if lock.parent.is_dir():  # FileLock would create the directory
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
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Create an empty directory in `parent` and remove it when the block ends.

    Directories with the same prefix whose process was killed are removed first: their locks are free.
    """
    remove_abandoned(parent, prefix)
    directory = parent / f"{prefix}{uuid.uuid4().hex[:8]}"
    lock = FileLock(_lock_of(directory))
    with contextlib.suppress(
        OSError, NotImplementedError
    ):  # without locks, abandoned directories are not removed either
        lock.acquire(blocking=False)  # before the directory exists, so that another process never finds it unlocked
    try:
        directory.mkdir()
        yield directory
    finally:
        _remove(directory, lock)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the temporary directories of killed processes from `parent`: their locks are free."""
    names = {path.name.removesuffix(".lock") for path in parent.glob(f"{prefix}*")}
    for directory in (parent / name for name in names):
        lock = FileLock(_lock_of(directory))
        with contextlib.suppress(Timeout, OSError, NotImplementedError):
            lock.acquire(blocking=False)
            _remove(directory, lock)


def _remove(directory: Path, lock: FileLock) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    lock.release()
    with contextlib.suppress(OSError):  # another process has the lock file open
        _lock_of(directory).unlink()


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + ".lock")
