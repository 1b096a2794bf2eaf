"""Checks the sizes that zip files of tensors declare before memory is allocated."""

import zipfile
from pathlib import Path

SMALL, MAX_RATIO = 64 << 20, 20
"""Bytes that every zip file may unpack to, and the largest ratio beyond that; weights can hardly be packed at all."""


def check_unpacked(size: int, path: Path) -> None:
    """Check the size in bytes that the content of a file has in memory."""
    if size > max(SMALL, MAX_RATIO * path.stat().st_size):
        raise ValueError(f"it would unpack to {size >> 20:,} MiB, far more than its size")


def check_zip(path: Path) -> None:
    """Check the unpacked size and the checksums of a zip file (.npz, torch); other files are left to their reader.

    PyTorch does not compare the checksums itself.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        check_unpacked(sum(member.file_size for member in archive.infolist()), path)
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it has a wrong checksum")
