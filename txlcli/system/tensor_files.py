"""Checks the sizes that files of tensors declare before memory is allocated; reads the headers of safetensors files."""

import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from txlcli.system.plain_json import parse_json

MAX_HEADER = 8 << 20
"""Largest header of a safetensors file, in bytes; that of the largest model of the paper has 0.1 MB."""
SMALL, MAX_RATIO = 64 << 20, 20
"""Bytes that every zip file may unpack to, and the largest ratio beyond that; weights can hardly be packed at all."""


METADATA = "__metadata__"
ITEM_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}
"""Bytes of a number of each dtype of safetensors."""


@dataclass(frozen=True)
class StoredTensor:
    """Place of a tensor in a safetensors file."""

    dtype: str
    """One of ITEM_BYTES."""
    shape: tuple[int, ...]
    offset: int
    """First byte in the file."""
    size: int
    """Number of bytes."""


def read_safetensors_header(file: BinaryIO, file_size: int) -> tuple[Mapping[str, str] | None, dict[str, StoredTensor]]:
    """Read the header of a safetensors file: its metadata, and its tensors in the order of the file."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER or length + 8 > file_size:
        raise ValueError(f"its header declares {length:,} bytes, more than the file or a header has")
    header = parse_json(file.read(length))
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    metadata = header.pop(METADATA, None)
    if metadata is not None and not (isinstance(metadata, dict) and all(isinstance(v, str) for v in metadata.values())):
        raise ValueError("its metadata is not a JSON object of texts")
    tensors = {name: _stored(name, entry, 8 + length) for name, entry in header.items()}
    in_order = dict(sorted(tensors.items(), key=lambda item: (item[1].offset, item[1].size)))
    end = 8 + length
    for name, tensor in in_order.items():
        if tensor.offset != end:
            raise ValueError(f"{name} does not begin where the tensor before it ends")
        end += tensor.size
    if end != file_size:
        raise ValueError(f"its tensors end at byte {end:,}, but it has {file_size:,}")
    return metadata, in_order


def _stored(name: str, entry: Any, first: int) -> StoredTensor:
    """Return the place of a tensor; `first` is the first byte behind the header."""
    try:
        dtype, shape, (start, stop) = entry["dtype"], tuple(entry["shape"]), entry["data_offsets"]
        numbers_are_valid = all(type(number) is int and number >= 0 for number in (*shape, start, stop))
        is_valid = numbers_are_valid and math.prod(shape) * ITEM_BYTES[dtype] == stop - start
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"the header of {name} is damaged, or has an unknown dtype") from error
    if not is_valid:
        raise ValueError(f"the shape of {name} does not fit its number of bytes")
    return StoredTensor(dtype, shape, first + start, stop - start)


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
