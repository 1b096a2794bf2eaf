"""HDF5 files behind a seal: a checksum that is verified before HDF5 reads the file, and a safe way to write them.

HDF5 has no checksums of its own metadata here, and may hang or crash on damaged metadata. The seal is a line in the
user block, the first bytes of the file, which HDF5 ignores. It covers all other bytes, except large datasets that have
checksums of their own. Files of earlier versions have no seal, and anyone can seal a file; so a child process reads
every file first.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import h5py

from txlcli.system import child
from txlcli.system.atomic_files import sync_file
from txlcli.system.plain_json import parse_json

MAGIC = b"txl seal 1\n"
HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
USER_BLOCK = 4096
"""Bytes before the HDF5 data; a power of two."""
_READ_BYTES = 1 << 20
T = TypeVar("T")


class DamagedFileError(ValueError):
    """The bytes of a file are not those that were written."""


class _File:
    """Binary file for HDF5 that remembers the first error instead of raising it.

    If a write fails in HDF5, it cannot close the file any more, and crashes the process later. So HDF5 sees no error.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.error: OSError | None = None

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        return self._file.tell()

    def read(self, size: int = -1) -> bytes:
        return self._file.read(size)

    def readinto(self, buffer: Any) -> Any:
        return self._file.readinto(buffer)  # type: ignore[attr-defined]

    def write(self, content: Any) -> int:
        view = memoryview(content).cast("B")
        end = self._file.tell() + len(view)
        while view and self.error is None:
            try:
                view = view[self._file.write(view) :]
            except OSError as error:
                self.error = error
        self._file.seek(end)
        return len(content)

    def truncate(self, size: int | None = None) -> int:
        if self.error is not None:
            return 0
        try:
            return self._file.truncate(size)
        except OSError as error:
            self.error = error
            return 0

    def flush(self) -> None:
        """Do nothing: the file has no buffer."""


class NewFile:
    """HDF5 file that is being written.

    Args:
        hdf5: the file to write to.
        file: what it is written through.
    """

    def __init__(self, hdf5: h5py.File, file: _File) -> None:
        self.hdf5, self._file = hdf5, file
        self._unsealed: list[h5py.Dataset] = []

    def raise_error(self) -> None:
        """Raise the first error of a write so far, if there was one."""
        if self._file.error is not None:
            raise self._file.error

    def leave_unsealed(self, dataset: h5py.Dataset) -> None:
        """Exclude the elements of a contiguous dataset, which has a checksum of its own, from the seal."""
        self._unsealed.append(dataset)

    def unsealed_ranges(self) -> list[tuple[int, int]]:
        """Return first and end byte of the excluded datasets in the file, in order."""
        ranges = []
        for dataset in self._unsealed:
            offset = dataset.id.get_offset()
            if offset is not None:  # an empty dataset has no place
                ranges.append((offset, offset + dataset.id.get_storage_size()))
        return sorted(ranges)


@contextmanager
def replacing_hdf5(
    path: Path, draft: Path, *, check: Callable[[Path], object] | None = None, **options: Any
) -> Iterator[NewFile]:
    """Yield a new HDF5 file, written to `draft`, which replaces `path` if the block succeeds and the file is complete.

    Args:
        path: final path.
        draft: temporary file on the same file system; overwritten if it exists, removed in the end.
        check: called with the complete draft before it is renamed; what it raises keeps the old file.
        options: of h5py.File.

    Raises:
        OSError: the file cannot be written; an existing file at `path` is unchanged.
        DamagedFileError: the bytes on disk are not those that were written.
    """
    try:
        with draft.open("w+b", buffering=0) as raw:
            file = _File(raw)
            with h5py.File(file, "w", userblock_size=USER_BLOCK, **options) as hdf5:
                new = NewFile(hdf5, file)
                yield new
                ranges = new.unsealed_ranges()
            new.raise_error()
            _write_seal(raw, ranges)
        verify_seal(draft)
        if check is not None:
            check(draft)
        sync_file(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _write_seal(raw: BinaryIO, unsealed: list[tuple[int, int]]) -> None:
    """Write the seal into the user block of a complete file."""
    size = raw.seek(0, os.SEEK_END)
    content = {"bytes": size, "unsealed": unsealed, "sha256": _digest(raw, size, unsealed)}
    line = json.dumps(content).encode()
    block = MAGIC + line + b"\n" + hashlib.sha256(line).hexdigest().encode() + b"\n"
    if len(block) > USER_BLOCK:
        raise ValueError(f"{len(unsealed)} datasets are too many for the seal")
    raw.seek(0)
    raw.write(block)


def verify_seal(path: Path) -> bool:
    """Check the seal of a file; return False for an HDF5 file of an earlier version, which has none.

    Raises:
        OSError: the file cannot be read, or is no HDF5 file.
        DamagedFileError: the seal is broken.
    """
    with path.open("rb") as file:
        block = file.read(USER_BLOCK)
        if block.startswith(HDF5_SIGNATURE):
            return False
        if not block.startswith(MAGIC):
            raise OSError("no HDF5 file")
        line, _, rest = block.removeprefix(MAGIC).partition(b"\n")
        digest, _, padding = rest.partition(b"\n")
        if hashlib.sha256(line).hexdigest().encode() != digest or padding.strip(b"\0"):
            raise DamagedFileError("its seal has a wrong checksum")
        content = parse_json(line)
        size = file.seek(0, os.SEEK_END)
        if size != content["bytes"]:
            raise DamagedFileError(f"it has {size:,} bytes instead of {content['bytes']:,}")
        if _digest(file, size, content["unsealed"]) != content["sha256"]:
            raise DamagedFileError("wrong checksum")
    return True


def _digest(file: BinaryIO, size: int, unsealed: list[tuple[int, int]]) -> str:
    """Return the digest of all bytes behind the user block that are in no unsealed range."""
    digest = hashlib.sha256()
    edges = [USER_BLOCK, *(edge for span in unsealed for edge in span), size]
    for start, end in list(pairwise(edges))[::2]:
        file.seek(start)
        left = end - start
        while left > 0:
            content = file.read(min(left, _READ_BYTES))
            if not content:
                raise DamagedFileError("it ends too early")
            digest.update(content)
            left -= len(content)
    return digest.hexdigest()


def read_hdf5(path: Path, read: Callable[[h5py.File], T]) -> T:
    """Return what `read` reads from an HDF5 file, after its seal has been verified.

    A child process reads the file first: HDF5 may hang or crash on a file of an earlier version, which has no seal, or
    on one that somebody made for this purpose.

    Raises:
        OSError: the file cannot be read.
        DamagedFileError: see `verify_seal`; or HDF5 does not survive reading the file.
    """

    def attempt() -> T:
        with h5py.File(path, "r") as file:
            return read(file)

    verify_seal(path)
    end = child.end_of(attempt)
    if end is not None:
        raise DamagedFileError(f"HDF5 {end} in reading it")
    return attempt()
