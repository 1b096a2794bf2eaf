"""What the chunks of a text have in common is put together."""

import numpy as np
import pyarrow
import pytest

from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.preparation.encoded_text import EncodedText
from txlcli.workflows.reporter import Reporter

CHUNKS = {
    "train": [
        (["b", "é", "a"], [2, 7, 3], [0, 1, 2]),
        ([], [], []),
        (["c", "a", "d", "b"], [1, 5, 1, 1], [3, 2, 4, 0]),
    ],
    "test": [(["e", "é"], [11, 13], [5, 1])],
}


@pytest.mark.parametrize("together", [1, 2, 3])
def test_symbols_are_numbered_in_first_seen_order_and_counted_per_split(tmp_path, together):
    text, expected = EncodedText(), {split: [] for split in CHUNKS}
    for split, rows in CHUNKS.items():
        chunks = []
        for number, (symbols, counts, table) in enumerate(rows):
            ids = np.repeat(np.arange(len(counts)), counts)
            chunks.append(encoded_chunk(tmp_path / f"{split}-{number}", symbols, ids))
            expected[split].append(np.array(table, dtype=int)[ids].tolist())
        for first in range(0, len(rows), together):
            text.add(split, chunks[first : first + together])
    assert text.symbols == ["b", "é", "a", "c", "d", "e"]
    assert text.counts("train").tolist() == [3, 7, 8, 1, 1, 0]
    assert text.counts("test").tolist() == [0, 13, 0, 0, 0, 11]
    assert text.by_frequency(("train",)) == ["a", "é", "b", "c", "d"]
    with Reporter().progress("writing") as step:
        for split in CHUNKS:
            assert [block.tolist() for block in text.blocks(split, np.arange(6), step)] == expected[split]
    assert not list(tmp_path.iterdir())


def encoded_chunk(path, symbols, ids):
    """A chunk with these symbols and ids."""
    with path.open("wb") as file:
        np.save(file, ids)
    array = pyarrow.array(symbols, pyarrow.large_string())
    counts = np.bincount(ids, minlength=len(symbols))
    return EncodedChunk(symbols=array, counts=counts, path=path, words=ids.size, lines=0, bytes=0)
