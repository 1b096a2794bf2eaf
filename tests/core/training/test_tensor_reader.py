"""Tensors are read in blocks by several threads, and a file that becomes shorter meanwhile is an error."""

import json
import os
import struct

import pytest
import torch
import xxhash
from safetensors.torch import load_file, save_file

from txlcli.core.training.tensor_reader import BLOCK, DTYPES, checksum, read_file, read_tensors
from txlcli.system.tensor_files import ITEM_BYTES, read_safetensors_header

LARGE = torch.arange(BLOCK // 4 * 3 + 5, dtype=torch.int32).view(-1, 1)
TENSORS = {
    "large": LARGE,
    "bf16": torch.tensor([1, 2, 3], dtype=torch.bfloat16),
    "bool": torch.tensor([True, False, True]),
    "complex": torch.tensor([[1 + 2j]], dtype=torch.complex64),
    "empty": torch.zeros(2, 0, 3),
    "number": torch.tensor(7.5, dtype=torch.float64),
}


@pytest.fixture
def path(tmp_path):
    save_file(TENSORS, tmp_path / "a.safetensors")
    return tmp_path / "a.safetensors"


def header_of(path):
    with path.open("rb") as file:
        return read_safetensors_header(file, path.stat().st_size)


def test_tensors_are_those_that_safetensors_reads(path):
    loaded, expected = read_file(path), load_file(path)
    assert loaded.keys() == expected.keys()
    for name, tensor in expected.items():
        assert loaded[name].dtype == tensor.dtype, name
        assert loaded[name].shape == tensor.shape, name
        assert torch.equal(loaded[name], tensor), name


def test_every_dtype_is_read(tmp_path):
    assert DTYPES.keys() == ITEM_BYTES.keys()
    tensors = {name: torch.arange(5).to(dtype) for name, dtype in DTYPES.items()}
    save_file(tensors, tmp_path / "a.safetensors")
    loaded = read_file(tmp_path / "a.safetensors")
    for name, tensor in tensors.items():
        assert loaded[name].dtype == DTYPES[name]
        assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8)), name


def test_a_checksum_is_that_of_the_name_the_dtype_the_shape_and_the_bytes():
    expected = xxhash.xxh3_128(b"a torch.bfloat16 (3,)" + bytes([0x80, 0x3F, 0, 0x40, 0x40, 0x40])).hexdigest()
    assert checksum("a", TENSORS["bf16"]) == expected


@pytest.mark.parametrize("byte", [0, BLOCK - 1, BLOCK, 3 * BLOCK + 1])
def test_a_wrong_byte_in_any_block_is_found(path, byte):
    stored = header_of(path)[1]
    checksums = {name: checksum(name, tensor) for name, tensor in TENSORS.items()}
    with path.open("r+b") as file:
        assert torch.equal(read_tensors(file, stored, checksums)["large"], LARGE)
        file.seek(stored["large"].offset + byte)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([value ^ 4]))
        file.flush()
        with pytest.raises(ValueError, match="large has a wrong checksum"):
            read_tensors(file, stored, checksums)


@pytest.mark.parametrize("keep", [0, 1 << 12, 2 * BLOCK])
def test_a_file_that_becomes_shorter_while_it_is_read_is_an_error(path, keep):
    stored = header_of(path)[1]
    with path.open("rb") as file:
        os.truncate(path, keep)
        with pytest.raises(ValueError, match="it became shorter while it was read"):
            read_tensors(file, stored)


def written(path, header, data=b""):
    content = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(content)) + content + data)
    return path


F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


@pytest.mark.parametrize(
    ("header", "size", "message"),
    [
        ([], 0, "its header is not a JSON object"),
        ({"__metadata__": {"a": 1}}, 0, "its metadata is not a JSON object of texts"),
        ({"a": F32}, 9, "its tensors end at byte"),
        ({"a": F32, "b": F32}, 8, "b does not begin where the tensor before it ends"),
        ({"a": {**F32, "data_offsets": [4, 12]}}, 12, "a does not begin where the tensor before it ends"),
        ({"a": {**F32, "dtype": "F31"}}, 8, "the header of a is damaged, or has an unknown dtype"),
        ({"a": {**F32, "data_offsets": [0]}}, 8, "the header of a is damaged, or has an unknown dtype"),
        ({"a": 7}, 8, "the header of a is damaged, or has an unknown dtype"),
        ({"a": {**F32, "shape": [-1, -2]}}, 8, "the shape of a does not fit its number of bytes"),
        ({"a": {**F32, "shape": [3]}}, 8, "the shape of a does not fit its number of bytes"),
        ({"a": {**F32, "shape": [1 << 62, 0], "data_offsets": [0, 0]}}, 0, None),
        ({"a": {**F32, "shape": [1 << 62, 1 << 62, 0], "data_offsets": [0, 0]}}, 0, "a has a shape that PyTorch does"),
    ],
)
def test_an_inconsistent_header_is_refused(tmp_path, header, size, message):
    path = written(tmp_path / "a.safetensors", header, bytes(size))
    if message is None:
        assert read_file(path)["a"].numel() == 0
        return
    with pytest.raises(ValueError, match=message):
        read_file(path)
