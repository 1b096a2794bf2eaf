"""Collects what the chunks hold: numbers for symbols, their counts per split, where their ids lie."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.workflows.preparation.tally import Tally


class Inventory:
    """All symbols of a text, numbered in first-seen order, counted per split."""

    def __init__(self) -> None:
        self.numbers: defaultdict[str, int] = defaultdict()
        self.numbers.default_factory = self.numbers.__len__  # a symbol that is seen first gets the next number
        self._counts: dict[str, NDArray[np.int64]] = {}

    def add(self, split: str, tally: Tally) -> NDArray[np.int64]:
        """Count one chunk; returns the number of each of the chunk's own symbols."""
        if tally.symbols is None:
            table = np.arange(tally.counts.size)
            size = tally.counts.size
        else:
            table = np.fromiter(map(self.numbers.__getitem__, tally.symbols), np.int64, len(tally.symbols))
            size = len(self.numbers)
        counts = self.counts(split, size)
        counts[table] += tally.counts
        self._counts[split] = counts
        return table

    def counts(self, split: str, size: int | None = None) -> NDArray[np.int64]:
        """How often each symbol occurs in a split, by number; `size` entries or more, one per symbol by default."""
        counts = self._counts.get(split, np.zeros(0, dtype=np.int64))
        size = len(self.numbers) if size is None else size
        if counts.size >= size:
            return counts
        grown = np.zeros(max(size, 2 * counts.size), dtype=np.int64)  # twice as many: it grows seldom
        grown[: counts.size] = counts
        return grown

    def by_frequency(self, splits: tuple[str, ...], least: int = 1) -> list[str]:
        """The symbols that occur at least `least` times in the splits, the most frequent first, ties as first seen."""
        total = sum(
            (self.counts(split)[: len(self.numbers)] for split in splits), np.zeros(len(self.numbers), np.int64)
        )
        names = list(self.numbers)
        return [
            names[number] for number in np.argsort(-total, kind="stable").tolist() if total[number] >= max(least, 1)
        ]


class Spool:
    """The ids of one split on disk, chunk by chunk, with the table of symbol numbers that each chunk needs."""

    def __init__(self) -> None:
        self._chunks: list[tuple[Path, np.dtype[Any]]] = []

    def add(self, tally: Tally, table: NDArray[np.int64]) -> None:
        """Take in one chunk, whose own symbols have the numbers in `table`."""
        _table_path(tally.path).write_bytes(table.astype(np.uint32).data)
        self._chunks.append((tally.path, tally.kind))

    def blocks(self, final: NDArray[np.int64], kind: np.dtype[Any]) -> Iterator[NDArray[Any]]:
        """The ids of each chunk, every symbol number replaced by `final[number]`; negative ones are left out.

        The files are removed on the way.
        """
        for path, own_kind in self._chunks:
            table = final[np.fromfile(_table_path(path), dtype=np.uint32)]
            yield _replace(np.fromfile(path, dtype=own_kind), table, kind)
            path.unlink()
            _table_path(path).unlink()


def _table_path(path: Path) -> Path:
    return path.with_suffix(".table")


def _replace(ids: NDArray[Any], table: NDArray[np.int64], kind: np.dtype[Any]) -> NDArray[Any]:
    left_out = np.flatnonzero(table < 0)
    if ids.dtype == kind == np.uint8:
        # bytes.translate is several times quicker than an index array.
        whole = np.zeros(256, dtype=np.uint8)
        whole[: table.size] = table.astype(np.uint8)
        return np.frombuffer(ids.tobytes().translate(whole.tobytes(), left_out.astype(np.uint8).tobytes()), np.uint8)
    if left_out.size:
        ids = ids[~np.isin(ids, left_out)]
    return table.astype(kind)[ids]
