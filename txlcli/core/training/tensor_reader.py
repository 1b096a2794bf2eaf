"""Reads tensors from a safetensors file, and computes their checksums.

The file is not mapped into memory: if another program truncates a mapped file, the process that reads it ends with
SIGBUS.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import torch
import xxhash
from torch import Tensor

from txlcli.system.checkpoint_header import MAX_HEADER
from txlcli.system.plain_json import parse_json

DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "F32": torch.float32,
    "I64": torch.int64,
    "F64": torch.float64,
}


@dataclass(frozen=True)
class StoredTensor:
    """Place of a tensor in a safetensors file."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int
    """First byte in the file."""


def read_file(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file."""
    with path.open("rb") as file:
        return read_tensors(file, read_header(file, path.stat().st_size)[1])


def read_header(file: BinaryIO, file_size: int) -> tuple[Mapping[str, str] | None, dict[str, StoredTensor]]:
    """Read the header of a safetensors file: its metadata, and its tensors."""
    length = int.from_bytes(file.read(8), "little")
    if length > MAX_HEADER or length + 8 > file_size:
        raise ValueError(f"its header declares {length:,} bytes, more than the file or a header has")
    try:
        header = parse_json(file.read(length))
        metadata = header.pop("__metadata__", None)
        return metadata, {name: _stored(name, entry, 8 + length, file_size) for name, entry in header.items()}
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError("its header is damaged, or has an unknown dtype") from error


def _stored(name: str, entry: Mapping[str, Any], first: int, file_size: int) -> StoredTensor:
    """Return the place of a tensor; `first` is the first byte behind the header."""
    dtype, shape, (start, stop) = DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    if min(start, *shape, 0) < 0 or first + stop > file_size or math.prod(shape) * dtype.itemsize != stop - start:
        raise ValueError(f"the shape of {name} does not fit its number of bytes, or the file is truncated")
    return StoredTensor(dtype, shape, first + start)


def read_tensors(
    file: BinaryIO, stored: Mapping[str, StoredTensor], checksums: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Read tensors, and compare them with their checksums."""
    tensors = {}
    for name, place in stored.items():
        tensors[name] = torch.empty(place.shape, dtype=place.dtype)
        content = _bytes_of(tensors[name])
        file.seek(place.offset)
        if file.readinto(content) < len(content):  # type: ignore[attr-defined]
            raise ValueError("it became shorter while it was read")
        if checksums is not None and checksum(name, tensors[name]) != checksums[name]:
            raise ValueError(f"{name} has a wrong checksum")
    return tensors


def checksum(name: str, tensor: Tensor) -> str:
    """Return the checksum of a tensor in host memory, with its name, dtype and shape."""
    total = xxhash.xxh3_128(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    total.update(_bytes_of(tensor))
    return str(total.hexdigest())


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data
