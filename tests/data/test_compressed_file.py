"""The file of `txl compress`: what is written is read, and damage is found."""

import dataclasses

import numpy as np
import pytest

from txlcli.data import compressed_file
from txlcli.data.compressed_file import CompressionHeader
from txlcli.errors import CompressedFileError

HEADER = CompressionHeader(
    **{"txl": "0.1.0", "torch": "2.13.0", "constriction": "0.5.0", "threads": 2},
    **{"weights": "00", "probe": "02", "content": "03", "bytes": 11, "tokens": 7, "lanes": 3},
    **{"seg_len": 5, "mem_len": 0, "max_distance": None, "same_length": "m"},
)
WORDS = np.arange(13, dtype=np.uint32)


def test_what_is_written_is_read(tmp_path):
    size = compressed_file.write(tmp_path / "packed", HEADER, WORDS)
    assert size == (tmp_path / "packed").stat().st_size
    header, words = compressed_file.read(tmp_path / "packed")
    assert header == HEADER
    assert (words == WORDS).all()


def test_every_flipped_bit_and_every_truncation_is_found(tmp_path):
    path = tmp_path / "packed"
    compressed_file.write(path, HEADER, WORDS)
    content = path.read_bytes()
    damaged = [content[:end] for end in range(len(content))]
    damaged += [content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :] for at in range(len(content))]
    for changed in damaged:
        path.write_bytes(changed)
        with pytest.raises(CompressedFileError):
            compressed_file.read(path)


def test_a_header_of_another_release_is_rejected(tmp_path):
    compressed_file.write(tmp_path / "packed", HEADER, WORDS)
    content = (tmp_path / "packed").read_bytes()[: -compressed_file.CHECKSUM_BYTES].replace(b'"lanes"', b'"Lanes"')
    (tmp_path / "packed").write_bytes(content + bytes.fromhex(compressed_file.digest(content)))
    with pytest.raises(CompressedFileError, match="truncated or altered"):
        compressed_file.read(tmp_path / "packed")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("threads", 0), ("threads", 1_000_000), ("threads", "2"), ("tokens", -1), ("tokens", 500_000_000)],
        *[("bytes", -1), ("bytes", 1 << 40), ("lanes", 0), ("lanes", 1 << 31), ("seg_len", 0), ("mem_len", -1)],
    ],
)
def test_impossible_sizes_are_rejected(tmp_path, name, value):
    compressed_file.write(tmp_path / "packed", dataclasses.replace(HEADER, **{name: value}), WORDS)
    with pytest.raises(CompressedFileError, match="truncated or altered"):
        compressed_file.read(tmp_path / "packed")
