"""Keeps two processes from writing the same files."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from filelock import FileLock, Timeout

from txlcli.errors import BusyError


@contextmanager
def exclusive(lock: Path, busy: str) -> Iterator[None]:
    """Hold a lock file while the block runs; the file stays behind, since others may be waiting for it.

    In a folder that cannot be written, or on a file system without locks, the block runs without one.

    Raises:
        BusyError: another process holds it; `busy` says what to do.
    """
    held = FileLock(lock)
    try:
        if lock.parent.is_dir():  # or else the lock would make it
            held.acquire(blocking=False)
    except Timeout:
        raise BusyError(busy) from None
    except (OSError, NotImplementedError):
        pass
    try:
        yield
    finally:
        held.release()
