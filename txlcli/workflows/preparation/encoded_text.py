"""Collects the encoded chunks of a text: symbol numbers, counts per split, files with ids."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from txlcli.data.token_store import SplitInfo
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.chunks import EncodedChunk
from txlcli.workflows.reporter import Step


class EncodedText:
    """All symbols of a text, numbered in first-seen order and counted per split, and the files with its ids."""

    def __init__(self) -> None:
        import pyarrow as arrow

        self._symbols = arrow.array([], arrow.large_string())
        self._counts: dict[str, NDArray[np.int64]] = {}
        self._chunks: dict[str, list[EncodedChunk]] = {}
        self._starts: dict[str, list[NDArray[np.int64]]] = {}

    @property
    def symbols(self) -> list[str]:
        """All symbols so far, in the order of their numbers."""
        symbols: list[str] = self._symbols.to_pylist()
        return symbols

    @property
    def splits(self) -> list[str]:
        """The splits so far."""
        return list(self._counts)

    def add(self, split: str, chunks: Sequence[EncodedChunk]) -> None:
        """Count successive chunks; append a table to the ids of each: the numbers of its own symbols."""
        import pyarrow as arrow

        # Arrow numbers in first-seen order, so the symbols that are known keep their numbers.
        arrays = [self._symbols, *(chunk.symbols for chunk in chunks)]
        encoded = arrow.concat_arrays(arrays).dictionary_encode()
        self._symbols = encoded.dictionary
        _, *tables, _ = np.split(encoded.indices.to_numpy(), np.cumsum([len(array) for array in arrays]))
        counts = self.counts(split)
        for chunk, table in zip(chunks, tables, strict=True):
            counts[table] += chunk.counts
            with chunk.path.open("ab") as file:
                np.save(file, table)
            self._chunks.setdefault(split, []).append(replace(chunk, symbols=None, counts=chunk.counts[:0].copy()))
        self._counts[split] = counts

    def counts(self, split: str) -> NDArray[np.int64]:
        """Return how often each symbol occurs in a split, by number."""
        counts = self._counts.get(split, np.zeros(0, dtype=np.int64))
        return np.pad(counts, (0, len(self._symbols) - counts.size))

    def total(self, name: str) -> int:
        """Return the sum of a count of the chunks: lines, bytes, nuls, invalid or boundaries."""
        return sum(getattr(chunk, name) for chunks in self._chunks.values() for chunk in chunks)

    def count(self, symbol: str) -> int:
        """Return how often a symbol occurs in all splits."""
        number = self._symbols.index(symbol).as_py()
        return 0 if number < 0 else sum(int(self.counts(split)[number]) for split in self._counts)

    def by_frequency(self, splits: Sequence[str], least: int = 1) -> list[str]:
        """Return the symbols that occur at least `least` times, most frequent first, ties in first-seen order."""
        total = np.sum([self.counts(split) for split in splits], axis=0)
        order = np.argsort(-total, kind="stable")
        symbols: list[str] = self._symbols.take(order[total[order] >= least]).to_pylist()
        return symbols

    def info(
        self, split: str, final: NDArray[np.int64], is_unknown: NDArray[np.bool_], *, count_line_ends: bool
    ) -> SplitInfo:
        """Return the counts of a split whose symbols get the ids `final`; those with negative ids are dropped."""
        counts, chunks = self.counts(split), self._chunks[split]
        kept = (final >= 0) & (counts > 0)
        if not kept.any():
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        return SplitInfo(
            tokens=int(counts[kept].sum()),
            words=sum(chunk.words + count_line_ends * chunk.lines for chunk in chunks),
            bytes=sum(chunk.bytes for chunk in chunks),
            unknown=int(counts[is_unknown].sum()),
            types=np.unique(final[kept]).size,
        )

    def blocks(
        self, split: str, final: NDArray[np.int64], step: Step, boundary: int | None = None
    ) -> Iterator[NDArray[np.int64]]:
        """Yield the ids of each chunk, replaced by `final`, without negative ones; remove each file once it is read.

        A document also begins after each `boundary`.
        """
        done, self._starts[split] = 0, [np.zeros(1, dtype=np.int64)]
        for chunk in self._chunks[split]:
            with chunk.path.open("rb") as file:
                ids, table = np.load(file), np.load(file)
            ids = final[table][ids]
            if chunk.starts.size:
                kept_before = np.cumsum(ids >= 0) - (ids >= 0)
                self._starts[split].append(done + kept_before[chunk.starts[chunk.starts < ids.size]])
            ids = ids[ids >= 0]
            if boundary is not None:
                self._starts[split].append(np.flatnonzero(ids == boundary) + done + 1)
            done += ids.size
            yield ids
            step.advance(ids.size)
            chunk.path.unlink()

    def starts(self, split: str) -> NDArray[np.int64]:
        """Return the places of the ids that begin a document, once all blocks of the split were read."""
        return np.unique(np.concatenate(self._starts[split]))
