"""Checks the stated sizes in files of tensors before a library allocates memory for them."""

import zipfile
from pathlib import Path

MOST_HEADER = 8 << 20
"""Largest header of a safetensors file, in bytes; that of the largest model of the paper has 0.1 MB."""
SMALL, MOST_RATIO = 64 << 20, 20
"""Bytes that every zip file may unpack to, and the largest ratio beyond that; weights can hardly be packed at all."""


def check_safetensors(path: Path) -> None:
    """Check the length of the header of a safetensors file.

    Raises:
        ValueError: it is longer than the file, or than a header needs to be.
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > MOST_HEADER or length + 8 > path.stat().st_size:
        raise ValueError(f"its header states {length:,} bytes, more than the file or a header has")


def check_zip(path: Path) -> None:
    """Check the unpacked size and the checksums of a zip file (.npz, torch); other files are left to their reader.

    PyTorch does not compare the checksums itself.

    Raises:
        ValueError: the size is far more than that of the file, or a checksum is wrong.
        OSError, BadZipFile: the file cannot be read.
    """
    if not zipfile.is_zipfile(path):
        return
    with zipfile.ZipFile(path) as archive:
        size = sum(member.file_size for member in archive.infolist())
        if size > max(SMALL, MOST_RATIO * path.stat().st_size):
            raise ValueError(f"it would unpack to {size >> 20:,} MiB, far more than its size")
        damaged = archive.testzip()
    if damaged is not None:
        raise ValueError(f"{damaged} in it has a wrong checksum")
