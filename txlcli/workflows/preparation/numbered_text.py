"""The text of the splits as numbers of its symbols: read in chunks by worker processes, encoded when it is written."""

import multiprocessing
import os
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from txlcli.data.token_store import SplitInfo
from txlcli.data.vocabulary import Vocab
from txlcli.errors import CorpusInputError, TxlError
from txlcli.system import processors
from txlcli.workflows.preparation.chunks import NumberedChunk
from txlcli.workflows.reporter import Step

Item = TypeVar("Item")
Result = TypeVar("Result")

_functions: list[Callable[[Any], Any]] = []
"""Function that this worker process calls; with a vocabulary it is too large to be sent with each item."""
MAX_WORKERS = 6  # a worker needs 250 MB to split a chunk into words; six and the first process stay below 2 GiB


@dataclass(frozen=True)
class NumberedText:
    """The numbered chunks of each split, in order."""

    chunks: Mapping[str, list[NumberedChunk]]

    def total(self, name: str, *splits: str) -> int:
        """Return the sum of a count of the chunks, by default of all splits."""
        return sum(getattr(chunk, name) for split in splits or self.chunks for chunk in self.chunks[split])

    def info(self, split: str, *, count_line_ends: bool) -> SplitInfo:
        """Return the counts of a split, but for those of ids."""
        words, lines, tokens, size = (self.total(name, split) for name in ("words", "lines", "tokens", "bytes"))
        if not tokens:
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        return SplitInfo(tokens=tokens, words=words + count_line_ends * lines, bytes=size)

    def starts(self, split: str) -> NDArray[np.integer]:
        """Return the places of the tokens that begin a document."""
        chunks = self.chunks[split]
        ends = np.cumsum([chunk.tokens for chunk in chunks])
        places = (chunk.starts + end - chunk.tokens for chunk, end in zip(chunks, ends, strict=True))
        return np.unique(np.concatenate([[0], *places]))

    def counts(self) -> dict[str, Counter[str]]:
        """Count the symbols of each split, in first-seen order."""
        counts = {split: Counter[str]() for split in self.chunks}
        for split, chunks in self.chunks.items():
            for chunk in chunks:
                symbols, numbers = chunk.read()
                counts[split].update(dict(zip(symbols, np.bincount(numbers).tolist(), strict=True)))
        return counts

    def ids(self, split: str, vocab: Vocab, step: Step) -> Iterator[NDArray[np.integer]]:
        """Yield the ids of each chunk, with -1 for unknown symbols, and remove its file."""
        for chunk in self.chunks[split]:
            symbols, numbers = chunk.read()
            chunk.path.unlink()
            yield vocab.table(symbols)[numbers]
            step.advance(chunk.tokens)


def default_workers() -> int:
    """Return the number of available processors, limited so that memory suffices."""
    return min(processors.available(), MAX_WORKERS)


def map_in_order(function: Callable[[Item], Result], items: Iterable[Item], workers: int) -> Iterator[Result]:
    """Map a function over items in `workers` processes, in this one if 1; keep the order."""
    if workers == 1:
        yield from map(function, items)
        return
    # A fresh interpreter per worker: forking a process that runs threads, as torch does, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_initialize, initargs=(function,)) as pool:
        try:
            yield from pool.map(_call, items)
        except BrokenProcessPool as error:
            raise TxlError("a worker process died, possibly because memory ran out; try `workers` 1") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def _initialize(function: Callable[[Any], object]) -> None:
    _functions.append(function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _call(item: Any) -> Any:
    return _functions[0](item)


def _exit_with_parent() -> None:
    """Exit when the parent process is killed; otherwise the worker would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
