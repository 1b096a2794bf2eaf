"""Replaces files whole or not at all."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to: it takes that name when the block ends well, and is removed otherwise.

    Others may read it as they may read what the user writes elsewhere, whatever the block leaves of its mode.

    Raises:
        OSError: it cannot be written, or cannot take the name; what was there before is untouched.
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
    """Have a file written out: where the power fails later, its name must not stand for an empty one."""
    with path.open("rb+") as file:
        os.fsync(file.fileno())
