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
    with if_free(lock) as is_free:
        if is_free is False:
            raise BusyError(busy)
        yield


@contextmanager
def writing(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock of a file or directory while the block writes it; the lock file is next to it, and is removed."""
    lock = path.with_name(f".{path.name}.lock")
    with exclusive(lock, busy):
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # there is no lock file in a directory that cannot be written
                lock.unlink()


@contextmanager
def if_free(lock: Path) -> Iterator[bool | None]:
    """Hold a lock file while the block runs, and yield True; False if another process holds it.

    None: its directory is missing or cannot be written, or the system has no locks.
    """
    held = FileLock(lock)
    is_free = None
    try:
        if lock.parent.is_dir():  # FileLock would create the directory
            held.acquire(blocking=False)
            is_free = True
    except Timeout:
        is_free = False
    except (OSError, NotImplementedError):
        pass
    try:
        yield is_free
    finally:
        held.release()


@contextmanager
def temporary_directory(parent: Path, prefix: str) -> Iterator[Path]:
    """Create an empty directory in `parent` and remove it when the block ends.

    Directories with the same prefix whose process was killed are removed first: their locks are free.
    """
    remove_abandoned(parent, prefix)
    directory = parent / f"{prefix}{uuid.uuid4().hex[:8]}"
    # The lock exists before the directory does, so that another process never finds it unlocked.
    with if_free(_lock_of(directory)):
        try:
            directory.mkdir()
            yield directory
        finally:
            _remove(directory)


def remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the temporary directories of killed processes from `parent`: their locks are free."""
    names = {path.name.removesuffix(".lock") for path in parent.glob(f"{prefix}*")}
    for name in names:
        with if_free(_lock_of(parent / name)) as free:
            if free:
                _remove(parent / name)


def _remove(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
    with contextlib.suppress(OSError):  # another process has the lock file open
        _lock_of(directory).unlink()


def _lock_of(directory: Path) -> Path:
    return directory.with_name(directory.name + ".lock")
