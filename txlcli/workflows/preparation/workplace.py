"""A folder for what a preparation keeps on disk meanwhile; what killed preparations have left is cleared away."""

import contextlib
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

PREFIX, LOCK = ".preparing-", ".lock"


@contextlib.contextmanager
def workplace(data_dir: Path) -> Iterator[Path]:
    """An empty folder in `data_dir`, which is removed when the block ends.

    Raises:
        OSError: it cannot be made.
    """
    _clear(data_dir)
    work = data_dir / f"{PREFIX}{uuid.uuid4().hex[:8]}"
    lock = FileLock(_lock_of(work))
    with contextlib.suppress(OSError, NotImplementedError):  # where there are no locks nobody clears away, either
        lock.acquire(blocking=False)  # before there is a folder that others might take for a dead one's
    try:
        work.mkdir()
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
        lock.release()
        _forget_lock(work)


def _clear(data_dir: Path) -> None:
    """Remove the folders of preparations that live no more: nobody holds their locks."""
    names = {path.name.removesuffix(LOCK) for path in data_dir.glob(f"{PREFIX}*")}
    for work in (data_dir / name for name in names):
        lock = FileLock(_lock_of(work))
        try:
            lock.acquire(blocking=False)
        except (Timeout, OSError, NotImplementedError):
            continue
        shutil.rmtree(work, ignore_errors=True)
        lock.release()
        _forget_lock(work)


def _forget_lock(work: Path) -> None:
    with contextlib.suppress(OSError):  # another process is looking at it
        _lock_of(work).unlink()


def _lock_of(work: Path) -> Path:
    return work.with_name(work.name + LOCK)
