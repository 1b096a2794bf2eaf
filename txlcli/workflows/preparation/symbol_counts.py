"""Collects the results of the chunks: symbol numbers, counts per split, files with encoded ids."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.reporter import Step


class SymbolCounts:
    """All symbols of a text, numbered in first-seen order and counted per split."""

    def __init__(self) -> None:
        import pyarrow as arrow

        self._symbols = arrow.array([], arrow.large_string())
        self._counts: dict[str, NDArray[np.int64]] = {}

    @property
    def symbols(self) -> list[str]:
        """All symbols so far, in the order of their numbers."""
        symbols: list[str] = self._symbols.to_pylist()
        return symbols

    def add(self, split: str, chunks: Sequence[EncodedChunk]) -> list[NDArray[np.int64]]:
        """Count successive chunks of one tokenizer and return, for each, the numbers of its own symbols."""
        symbols = [chunk.symbols for chunk in chunks if chunk.symbols is not None]
        tables = self._number(symbols) if symbols else [np.arange(chunk.counts.size) for chunk in chunks]
        for chunk, table in zip(chunks, tables, strict=True):
            counts = self.counts(split, max(chunk.counts.size, len(self._symbols)))
            counts[table] += chunk.counts
            self._counts[split] = counts
        return tables

    def _number(self, arrays: list[Any]) -> list[NDArray[np.int64]]:
        """Return, for each Arrow array, the numbers of its symbols; a new symbol gets the next number."""
        import pyarrow as arrow

        # Arrow numbers in first-seen order, so the symbols that are known keep their numbers.
        joined = arrow.concat_arrays([self._symbols, *(array.cast(arrow.large_string()) for array in arrays)])
        ends = np.cumsum([len(self._symbols), *map(len, arrays)])
        encoded = joined.dictionary_encode()
        self._symbols = encoded.dictionary
        return np.split(encoded.indices.to_numpy().astype(np.int64), ends)[1:-1]

    def counts(self, split: str, size: int | None = None) -> NDArray[np.int64]:
        """Return the counts of a split by symbol number; at least `size` entries, by default one per symbol."""
        counts = self._counts.get(split, np.zeros(0, dtype=np.int64))
        size = len(self._symbols) if size is None else size
        return np.pad(counts, (0, max(0, size - counts.size)))

    def by_frequency(self, splits: tuple[str, ...], least: int = 1) -> list[str]:
        """Return the symbols that occur at least `least` times in the splits, most frequent first.

        Ties are in first-seen order.
        """
        names = self.symbols
        size = len(names)
        total = sum((self.counts(split)[:size] for split in splits), np.zeros(size, np.int64))
        order = np.argsort(-total, kind="stable").tolist()
        return [names[number] for number in order if total[number] >= max(least, 1)]


class EncodedSplit:
    """One split after reading: its words, its bytes, and its ids on disk, chunk by chunk."""

    def __init__(self) -> None:
        self.words = self.bytes = 0
        self._chunks: list[tuple[Path, np.dtype[Any]]] = []

    def add(self, chunk: EncodedChunk, table: NDArray[np.int64], *, count_line_ends: bool) -> None:
        """Add a chunk whose own symbols have the numbers in `table`, which is kept next to its ids."""
        chunk.path.with_suffix(".table").write_bytes(table.astype(np.uint32).data)
        self._chunks.append((chunk.path, chunk.dtype))
        self.words += chunk.words + (chunk.lines if count_line_ends else 0)
        self.bytes += chunk.bytes

    def blocks(self, final: NDArray[np.int64], dtype: np.dtype[Any], step: Step) -> Iterator[NDArray[Any]]:
        """Yield the ids of each chunk, with every symbol number replaced by `final[number]`; drop negative ones.

        Each file is removed after it has been read.
        """
        for path, own_dtype in self._chunks:
            table_path = path.with_suffix(".table")
            table = final[np.fromfile(table_path, dtype=np.uint32)]
            ids = np.fromfile(path, dtype=own_dtype)
            if (table < 0).any():
                ids = ids[table[ids] >= 0]
            yield table.astype(dtype)[ids]
            step.advance(ids.size)
            path.unlink()
            table_path.unlink()
