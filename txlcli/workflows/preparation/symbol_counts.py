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

    @property
    def splits(self) -> list[str]:
        """The splits that have been counted."""
        return list(self._counts)

    def add(self, split: str, chunks: Sequence[EncodedChunk]) -> list[NDArray[np.int32]]:
        """Count successive chunks and return, for each, the numbers of its own symbols."""
        import pyarrow as arrow

        # Arrow numbers in first-seen order, so the symbols that are known keep their numbers.
        arrays = [self._symbols, *(chunk.symbols for chunk in chunks)]
        encoded = arrow.concat_arrays(arrays).dictionary_encode()
        self._symbols = encoded.dictionary
        _, *tables, _ = np.split(encoded.indices.to_numpy(), np.cumsum([len(array) for array in arrays]))
        counts = self.counts(split)
        for chunk, table in zip(chunks, tables, strict=True):
            counts[table] += chunk.counts
        self._counts[split] = counts
        return tables

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how often each symbol occurs in a split, by number."""
        counts = self._counts.get(split, np.zeros(0, dtype=np.int64))
        return np.pad(counts, (0, len(self._symbols) - counts.size))

    def by_frequency(self, splits: Sequence[str], least: int = 1) -> list[str]:
        """Return the symbols that occur at least `least` times in the splits, most frequent first.

        Ties are in first-seen order.
        """
        total = np.sum([self.counts(split) for split in splits], axis=0)
        order = np.argsort(-total, kind="stable")
        symbols: list[str] = self._symbols.take(order[total[order] >= least]).to_pylist()
        return symbols


class EncodedSplit:
    """Size of a split, and the files with its ids."""

    def __init__(self) -> None:
        self.words = self.lines = self.bytes = 0
        self._files: list[Path] = []

    def add(self, chunk: EncodedChunk, table: NDArray[Any]) -> None:
        """Add a chunk whose own symbols have the numbers in `table`, which is appended to its ids."""
        with chunk.path.open("ab") as file:
            np.save(file, table)
        self._files.append(chunk.path)
        self.words += chunk.words
        self.lines += chunk.lines
        self.bytes += chunk.bytes

    def blocks(self, final: NDArray[np.int64], step: Step) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of each chunk, with every symbol number replaced by `final[number]`; drop negative ones.

        Each file is removed after it has been read.
        """
        for path in self._files:
            with path.open("rb") as file:
                ids, table = np.load(file), np.load(file)
            ids = final[table][ids]
            ids = ids[ids >= 0]
            yield ids
            step.advance(ids.size)
            path.unlink()
