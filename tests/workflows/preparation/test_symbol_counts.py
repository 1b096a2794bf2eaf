"""What the chunks of a split have in common is put together on disk."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest

from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.preparation.symbol_counts import SymbolCounts

CHUNKS = [
    ("train", ["b", "é", "a"], [2, 7, 3], [0, 1, 2]),
    ("train", [], [], []),
    ("train", ["c", "a", "d", "b"], [1, 5, 1, 1], [3, 2, 4, 0]),
    ("test", ["e", "é"], [11, 13], [5, 1]),
]


@pytest.mark.parametrize("together", [1, 2, 3])
def test_symbols_are_numbered_in_first_seen_order_and_counted_per_split(together):
    counted = SymbolCounts()
    for split in ("train", "test"):
        own = [chunk for chunk in CHUNKS if chunk[0] == split]
        for first in range(0, len(own), together):
            group = own[first : first + together]
            chunks = [
                encoded_chunk(pyarrow.array(symbols, pyarrow.large_string()), counts) for _, symbols, counts, _ in group
            ]
            assert [table.tolist() for table in counted.add(split, chunks)] == [table for *_, table in group]
    assert counted.symbols == ["b", "é", "a", "c", "d", "e"]
    assert counted.counts("train")[:6].tolist() == [3, 7, 8, 1, 1, 0]
    assert counted.counts("test")[:6].tolist() == [0, 13, 0, 0, 0, 11]
    assert counted.by_frequency(("train",)) == ["a", "é", "b", "c", "d"]


def encoded_chunk(symbols, counts):
    """A chunk with these symbols and counts."""
    return EncodedChunk(
        symbols=symbols,
        counts=np.array(counts, dtype=np.int64),
        path=Path("ids"),
        words=sum(counts),
        lines=0,
        bytes=0,
    )
