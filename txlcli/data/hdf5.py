"""HDF5 files of txl: written completely or not at all, with HDF5's own checksums, and read with bounded sizes.

The format of HDF5 1.10 has a checksum in each block of metadata. Texts are attributes of a fixed length, since HDF5
stores those of variable length without a checksum.
"""

import io
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from numpy.typing import NDArray

Facts = Mapping[str, str | int | float | None]
"""Attributes by name; None is omitted."""
ALIGNMENT = 64  # bytes; tensors need aligned memory maps
READ_ERRORS = (OSError, KeyError, ValueError, TypeError, AttributeError, RuntimeError)
"""Exceptions that h5py raises for damaged files, and readers for files with other content."""


class DiskFile(io.FileIO):
    """File for HDF5 that remembers the first error of a write, or a signal during it, instead of raising it.

    After a failed write, as on a full disk, HDF5 cannot close its file, and crashes the process later.
    """

    error: BaseException | None = None

    def write(self, content: Any) -> int:
        """Write all bytes, unless a write has failed."""
        view = memoryview(content).cast("B")
        end = self.tell() + len(view)
        while view and self.error is None:
            try:
                view = view[super().write(view) :]
            except BaseException as error:
                self.error = error
        self.seek(end)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        """Change the size, unless a write has failed."""
        if self.error is None:
            try:
                return super().truncate(size)
            except BaseException as error:
                self.error = error
        return 0

    def raise_error(self) -> None:
        """Raise the first error of a write so far, if there was one."""
        if self.error is not None:
            raise self.error


def reading(path: Path) -> h5py.File:
    """Open a file for reading, without the locks that some network file systems lack: files are replaced as a whole."""
    return h5py.File(path, locking=False)


@contextmanager
def creating(path: Path) -> Iterator[tuple[h5py.File, DiskFile]]:
    """Yield a new HDF5 file, and the file on disk below it; raise an OSError if not everything was written."""
    with DiskFile(path, "w+") as disk:
        with h5py.File(disk, "w", libver="v110", alignment_threshold=1, alignment_interval=ALIGNMENT) as file:
            yield file, disk
        disk.raise_error()


def set_attributes(part: h5py.Group | h5py.Dataset, facts: Facts) -> None:
    """Set attributes; texts get a fixed length, and are read as bytes."""
    for key, value in facts.items():
        if isinstance(value, str):
            content = value.encode("utf-8", "backslashreplace")  # a path may have other bytes
            part.attrs[key] = np.array(content, dtype=h5py.string_dtype("utf-8", max(1, len(content))))
        elif value is not None:
            part.attrs[key] = value


def add_array(group: h5py.Group, name: str, values: NDArray[Any]) -> h5py.Dataset:
    """Add an array with HDF5's checksums of its elements."""
    return group.create_dataset(name, data=values, chunks=True, fletcher32=True)


def array(group: h5py.Group, name: str) -> h5py.Dataset:
    """Return an array of a group; raise a ValueError if it is larger than the file, since txl compresses none."""
    dataset = group[name]
    if dataset.nbytes > os.path.getsize(dataset.file.filename):
        raise ValueError(f"{name} declares {dataset.nbytes:,} bytes, more than the file has")
    return dataset


def read_array(group: h5py.Group, name: str) -> NDArray[Any]:
    """Read an array of a group; see `array`."""
    return array(group, name)[()]
