"""A compressed file is read to its last byte, or rejected with the place at which that is impossible."""

import bz2
import gzip
import lzma
import random
import struct

import pyarrow as arrow
import pytest

from txlcli.corpora.compressed import open_content
from txlcli.corpora.corpus import CorpusError

FIRST = bytes(range(256)) * 11
SECOND = b"the second stream\n" * 301
SKIPPED = struct.pack("<2I", 0x184D2A50, 3) + b"abc"


def zstd(data):
    return arrow.Codec("zstd").compress(data, asbytes=True)


COMPRESS = {"gzip": gzip.compress, "bzip2": bz2.compress, "xz": lzma.compress, "zstd": zstd}


def content(tmp_path, compression, data):
    path = tmp_path / "packed"
    path.write_bytes(data)
    with open_content(path, compression) as file:
        return file.read()


@pytest.mark.parametrize(
    ("compression", "between", "after"),
    [
        ("gzip", b"", b""),
        ("gzip", b"", bytes(512)),
        ("bzip2", b"", b""),
        ("bzip2", b"", bytes(3)),
        ("xz", b"", b""),
        ("xz", bytes(4), bytes(1 << 21)),
        ("xz", bytes(1 << 20), b""),
        ("zstd", b"", b""),
        ("zstd", SKIPPED, SKIPPED),
    ],
)
def test_all_streams_are_read_and_padding_is_not(tmp_path, compression, between, after):
    compress = COMPRESS[compression]
    data = compress(FIRST) + between + compress(SECOND) + compress(b"") + after
    assert content(tmp_path, compression, data) == FIRST + SECOND


@pytest.mark.parametrize("compression", COMPRESS)
@pytest.mark.parametrize("damage", ["header", "text", "short"])
def test_what_is_not_a_stream_after_a_stream_is_rejected_with_its_place(tmp_path, compression, damage):
    first = COMPRESS[compression](FIRST)
    second = COMPRESS[compression](SECOND)
    rest = {"header": bytes([second[0] ^ 1]) + second[1:], "text": b"plain text\n", "short": second[:2]}[damage]
    with pytest.raises(CorpusError, match=rf"damaged, or not {compression} .* byte {len(first):,}|.* byte \d"):
        content(tmp_path, compression, first + rest)


def test_a_zstd_window_that_is_too_large_is_named(tmp_path):
    frame = bytes.fromhex("28b52ffd00a8010000")  # a window of 2 GiB, and an empty last block
    with pytest.raises(CorpusError, match="zstd -d --long=31"):
        content(tmp_path, "zstd", frame)


def test_padding_of_xz_comes_in_multiples_of_four(tmp_path):
    with pytest.raises(CorpusError, match="no stream begins at byte"):
        content(tmp_path, "xz", lzma.compress(FIRST) + bytes(6))


@pytest.mark.parametrize("compression", ["gzip", "bzip2", "xz"])  # these have checksums
def test_no_flipped_or_lost_byte_of_a_later_stream_is_overlooked(tmp_path, compression):
    first = COMPRESS[compression](FIRST)
    whole = first + COMPRESS[compression](SECOND)
    generator = random.Random(7)
    for _ in range(60):
        changed = bytearray(whole)
        changed[generator.randrange(len(first), len(whole))] ^= 1 << generator.randrange(8)
        if generator.random() < 0.3:
            del changed[generator.randrange(len(first) + 1, len(whole)) :]
        try:
            read = content(tmp_path, compression, bytes(changed))
        except CorpusError:
            continue
        assert read == FIRST + SECOND  # a field that means nothing for the content
