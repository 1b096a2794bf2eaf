"""Tensors are those that safetensors reads, and a damaged file or one that becomes shorter meanwhile is an error."""

import json
import os
import struct

import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from txlcli.core.training.tensor_reader import DTYPES, checksum, read_file, read_header, read_tensors

TENSORS = {
    "large": torch.arange(786_437, dtype=torch.int32).view(-1, 1),
    "empty": torch.zeros(2, 0, 3),
    "number": torch.tensor(7.5, dtype=torch.float64),
    **{str(dtype): torch.arange(5).to(dtype) for dtype in DTYPES.values()},
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def header_of(path):
    with path.open("rb") as file:
        return read_header(file, path.stat().st_size)


def test_tensors_are_those_that_safetensors_reads(path):
    loaded, expected = read_file(path), load_file(path)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert torch.equal(loaded[name], tensor), name


def test_a_checksum_is_that_of_the_name_the_dtype_the_shape_and_the_bytes():
    expected = xxhash.xxh3_128(b"a torch.bfloat16 (3,)" + bytes([0x80, 0x3F, 0, 0x40, 0x40, 0x40])).hexdigest()
    assert checksum("a", torch.tensor([1, 2, 3], dtype=torch.bfloat16)) == expected


def test_a_wrong_byte_is_found(path):
    stored = header_of(path)[1]
    checksums = {name: checksum(name, tensor) for name, tensor in TENSORS.items()}
    with path.open("r+b") as file:
        assert torch.equal(read_tensors(file, stored, checksums)["large"], TENSORS["large"])
        file.seek(stored["large"].offset + 999_999)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 4]))
        file.flush()
        with pytest.raises(ValueError, match="large has a wrong checksum"):
            read_tensors(file, stored, checksums)


@pytest.mark.parametrize("keep", [0, 1 << 12, 2 << 20])
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(path, keep):
    stored = header_of(path)[1]
    with path.open("rb") as file:
        os.truncate(path, keep)
        with pytest.raises(ValueError, match="it became shorter while it was read"):
            read_tensors(file, stored)


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
DAMAGED, MISFIT = "its header is damaged, or has an unknown dtype", "the shape of a does not fit its number of bytes"


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ([], 0, DAMAGED),
        ({"a": F32}, 7, MISFIT),
        ({"a": {**F32, "data_offsets": [-4, 4]}}, 12, MISFIT),
        ({"a": {**F32, "shape": [-2]}}, 8, MISFIT),
        ({"a": {**F32, "shape": [1 << 40]}}, 8, MISFIT),
        ({"a": {**F32, "dtype": "F31"}}, 8, DAMAGED),
        ({"a": {**F32, "shape": 2}}, 8, DAMAGED),
        ({"a": 7}, 8, DAMAGED),
    ],
)
def test_a_damaged_header_is_rejected(tmp_path, header, size, message):
    path, content = tmp_path / "a.safetensors", json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + bytes(size))
    with pytest.raises(ValueError, match=message):
        read_file(path)
