"""Keeps two processes from writing the same files."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from txlcli.errors import RunError


@contextmanager
def alone(lock: Path, busy: str) -> Iterator[None]:
    """Hold a lock file while the block runs. Where none can be made, nothing can be written either.

    Raises:
        RunError: another process holds it; `busy` says what to do.
    """
    held = FileLock(lock)
    try:
        if lock.parent.is_dir():
            held.acquire(blocking=False)
    except Timeout:
        raise RunError(busy) from None
    except OSError:  # a folder that nobody can write to, or a file system without locks
        pass
    try:
        yield
    finally:
        if held.is_locked:
            with suppress(OSError):
                lock.unlink()
            held.release()
