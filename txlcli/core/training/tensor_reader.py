"""Reads tensors from a safetensors file, and computes their checksums block by block.

Several threads read: neither reading nor xxhash holds Python's lock. A block is still in the processor's cache when its
checksum is computed, which is four times as fast as later. The file is not mapped into memory: if another program
truncates a mapped file, the process that reads it ends with SIGBUS.
"""

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import torch
import xxhash
from torch import Tensor

from txlcli.system import processors
from txlcli.system.tensor_files import StoredTensor, read_safetensors_header

BLOCK = 1 << 20
"""Bytes that are read at a time."""
MAX_THREADS = 4
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "U16": torch.uint16,
    "I16": torch.int16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "U32": torch.uint32,
    "I32": torch.int32,
    "F32": torch.float32,
    "U64": torch.uint64,
    "I64": torch.int64,
    "F64": torch.float64,
    "C64": torch.complex64,
}


def read_file(path: Path) -> dict[str, Tensor]:
    """Read all tensors of a safetensors file."""
    with path.open("rb") as file:
        return read_tensors(file, read_safetensors_header(file, path.stat().st_size)[1])


def read_tensors(
    file: BinaryIO, stored: Mapping[str, StoredTensor], checksums: Mapping[str, str] | None = None
) -> dict[str, Tensor]:
    """Read tensors, and compare them with their checksums."""
    tensors = {name: _allocate(name, place) for name, place in stored.items()}

    def read(name: str) -> None:
        expected = None if checksums is None else checksums[name]
        _read_tensor(file.fileno(), stored[name].offset, name, tensors[name], expected)

    largest_first = sorted(tensors, key=lambda name: -stored[name].size)
    with ThreadPoolExecutor(min(MAX_THREADS, processors.available())) as pool:
        for _ in pool.map(read, largest_first):
            pass
    return tensors


def checksum(name: str, tensor: Tensor) -> str:
    """Return the checksum of a tensor in host memory, with its name, dtype and shape."""
    total = _begin_checksum(name, tensor)
    total.update(_bytes_of(tensor))
    return str(total.hexdigest())


def _begin_checksum(name: str, tensor: Tensor) -> xxhash.xxh3_128:
    return xxhash.xxh3_128(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())


def _allocate(name: str, place: StoredTensor) -> Tensor:
    try:
        return torch.empty(place.shape, dtype=DTYPES[place.dtype])
    except (RuntimeError, TypeError) as error:
        raise ValueError(f"{name} has a shape that PyTorch does not support") from error


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.flatten().view(torch.uint8).numpy().data


def _read_tensor(descriptor: int, offset: int, name: str, tensor: Tensor, expected: str | None) -> None:
    """Read the bytes of a tensor, and compare them with its checksum."""
    total = _begin_checksum(name, tensor)
    content = _bytes_of(tensor)
    done = 0
    while done < len(content):
        block = content[done : done + BLOCK]
        count = os.preadv(descriptor, [block], offset + done)
        if not count:
            raise ValueError("it became shorter while it was read")
        if expected is not None:
            total.update(block[:count])
        done += count
    if expected is not None and total.hexdigest() != expected:
        raise ValueError(f"{name} has a wrong checksum")
