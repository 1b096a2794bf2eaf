"""What the chunks of a split have in common is put together on disk."""

from pathlib import Path

import numpy as np
import pyarrow
import pytest

from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.preparation.preparing import collect_starts
from txlcli.workflows.preparation.symbol_counts import SymbolCounts

STREAM = np.array([5, 0, 0, 7, 5, 0, 3, 0, 2, 2], dtype=np.uint8)
STARTS = [0, 2, 3, 6, 8]


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
                encoded_chunk(pyarrow.array(symbols, pyarrow.string()), counts) for _, symbols, counts, _ in group
            ]
            assert [table.tolist() for table in counted.add(split, chunks)] == [table for *_, table in group]
    assert counted.symbols == ["b", "é", "a", "c", "d", "e"]
    assert counted.counts("train")[:6].tolist() == [3, 7, 8, 1, 1, 0]
    assert counted.counts("test")[:6].tolist() == [0, 13, 0, 0, 0, 11]
    assert counted.by_frequency(("train",)) == ["a", "é", "b", "c", "d"]


def test_ids_of_a_vocabulary_are_counted_as_they_are():
    counted = SymbolCounts()
    tables = counted.add("train", [encoded_chunk(None, [2, 0, 3]), encoded_chunk(None, [1, 1, 5])])
    assert [table.tolist() for table in tables] == [[0, 1, 2], [0, 1, 2]]
    assert counted.counts("train")[:3].tolist() == [3, 1, 8]


def encoded_chunk(symbols, counts):
    """A chunk with these symbols and counts."""
    return EncodedChunk(
        symbols=symbols,
        counts=np.array(counts, dtype=np.int64),
        path=Path("ids"),
        dtype=np.dtype(np.uint8),
        words=sum(counts),
        lines=0,
        bytes=0,
    )


@pytest.mark.parametrize("cuts", [[], [1], [2, 3, 3], [5, 6, 8], [10]])
@pytest.mark.parametrize(("tokens", "expected"), [(10, STARTS), (8, STARTS[:-1])])
def test_sentences_start_after_each_boundary_but_the_last_however_the_stream_is_cut(cuts, tokens, expected):
    starts = []
    blocks = np.split(STREAM[:tokens], cuts)
    collected = list(collect_starts(blocks, 0, tokens, starts))
    assert [block.tolist() for block in collected] == [block.tolist() for block in blocks]
    assert np.concatenate(starts).tolist() == expected
    assert {block.dtype for block in starts} == {np.dtype(np.uint8)}
