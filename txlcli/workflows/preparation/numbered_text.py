"""The text of the splits as numbers of its symbols: read in chunks by worker processes, encoded when it is written."""

import multiprocessing
import os
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import feather

from txlcli.corpora.corpus import Slice, Slices
from txlcli.corpora.directory import invalid_places
from txlcli.corpora.locate import whole
from txlcli.data.token_store import SplitCounts
from txlcli.data.vocabulary import Ids, Vocab, count_words, smallest_dtype
from txlcli.errors import CorpusInputError, TxlError
from txlcli.system import processors
from txlcli.workflows.preparation.planning import CHUNK
from txlcli.workflows.reporter import Progress

MAX_WORKERS = 6  # a worker needs 250 MB to split a chunk into words; six and the first process stay below 2 GiB


def cut_into_chunks(slices: Slices, size: int = CHUNK) -> Iterator[Slices]:
    """Yield chunks of about `size` bytes in reading order, cut after a line end, else after a blank, else a character.

    The cuts depend only on the text, so they are the same for any number of workers.
    """
    held: list[Slice] = []
    filled = 0
    for piece in slices:
        if held and filled + piece.size > size:
            yield tuple(held)
            held = []
            filled = 0
        rest = piece
        while rest.size > size:
            head = rest.read(0, size)
            end = head.rfind(b"\n") + 1 or head.rfind(b" ") + 1 or _character_end(rest, size)
            cut = rest.start + end
            yield (Slice(rest.path, rest.start, cut),)
            rest = replace(rest, start=cut)
        if rest.size:
            held.append(rest)
            filled += rest.size
    if held:
        yield tuple(held)


def _character_end(piece: Slice, offset: int) -> int:
    """Return the first offset, from `offset` on, that is not inside a UTF-8 character."""
    for byte in piece.read(offset, offset + 3):
        if byte & 0xC0 != 0x80:
            break
        offset += 1
    return offset


def align_to_characters(slices: Slices) -> Slices:
    """Move each end of a slice that lies inside a UTF-8 character behind that character."""
    aligned = []
    for piece in slices:
        file = whole(piece.path)
        start = _character_end(file, piece.start)
        stop = _character_end(file, piece.stop)
        aligned.append(replace(piece, start=start, stop=stop))
    return tuple(aligned)


def join_files(slices: Slices, *, close_last: bool) -> Slices:
    """Add the line end that a slice's last line lacks before the next slice.

    With `close_last`, which words need, also after the last slice, unless the text has no word.
    """
    pieces = [piece for piece in slices if piece.size]
    if not pieces:
        return ()
    *others, last = pieces
    if close_last and any(map(_has_word, pieces)):
        last = _closed(last)
    return (*map(_closed, others), last)


def _has_word(piece: Slice) -> bool:
    return any(block.strip() for block in piece.blocks())


def _closed(piece: Slice) -> Slice:
    """Return a slice with the line end that its last line lacks."""
    if piece.read(piece.size - 1) in (b"\n", b"\r"):
        return piece
    return replace(piece, tail=b"\n")


def read_chunk(chunk: Slices, *, is_utf8: bool) -> bytes:
    """Read the bytes of a chunk; if `is_utf8`, they must be UTF-8."""
    parts = []
    for piece in chunk:
        data = piece.read()
        if is_utf8:
            _check_utf8(piece, data)
        parts.append(data)
    return b"".join(parts)


def _check_utf8(piece: Slice, data: bytes) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise CorpusInputError(
            f"{piece.path}: byte {piece.start + error.start:,} is not valid UTF-8; give its `encoding`, such as "
            "cp1252, repair the file, or use `tokenizer` byte"
        ) from None


@dataclass(frozen=True, kw_only=True)
class NumberedChunk:
    """Counts of one chunk; the file `path` has its symbols, and its text as their numbers."""

    path: Path
    tokens: int
    words: int
    lines: int
    bytes: int
    starts: Ids
    """Places of the tokens that begin a document."""
    nuls: int
    """Number of NUL bytes."""
    invalid: int
    """Number of places that are not UTF-8, which only bytes may have."""
    boundaries: int
    """Times that the text itself has the symbol that ends a line."""
    literal_unknown: int
    """Times that the text itself has the symbol of unknown ones."""

    def read(self) -> tuple[list[str], Ids]:
        """Return the distinct symbols in first-seen order, and the text as their numbers."""
        with self.path.open("rb") as file:
            text = feather.read_table(file, memory_map=False).column(0).combine_chunks()
        return text.dictionary.to_pylist(), text.indices.to_numpy()


Job = tuple[Slices, Sequence[int]]
"""A chunk to read, and the offsets in it at which documents begin."""


def number_chunk(rules: Vocab, directory: Path, job: Job, *, sentences: bool) -> NumberedChunk:
    """Split a chunk into symbols by the rules of a vocabulary, and write their numbers into a file of the directory.

    With `sentences`, a document begins after each boundary.
    """
    chunk, offsets = job
    data = read_chunk(chunk, is_utf8=rules.tokenizer != "byte")
    parts = [data[start:end] for start, end in pairwise([0, *offsets, len(data)])]
    symbols, numbers, sizes = rules.number(parts)
    boundary = "" if rules.boundary is None else rules.symbols[rules.boundary]
    unknown = "" if rules.unknown is None else rules.symbols[rules.unknown]
    invalid = 0
    if rules.tokenizer == "byte":
        invalid = invalid_places(data)
    words, lines = count_words(data, len(numbers), rules.tokenizer, has_boundary=bool(boundary))
    starts: Ids = np.cumsum(sizes)[:-1]
    if sentences:
        starts = np.flatnonzero(_is_symbol(boundary, symbols, numbers)) + 1
    boundaries = 0
    if boundary:
        boundaries = data.count(boundary.encode())
    return NumberedChunk(
        path=_write(symbols, numbers, directory),
        tokens=len(numbers),
        words=words,
        lines=lines,
        bytes=len(data),
        starts=starts,
        nuls=data.count(0),
        invalid=invalid,
        boundaries=boundaries,
        literal_unknown=int(_is_symbol(unknown, symbols, numbers).sum()),
    )


def _is_symbol(symbol: str, symbols: Sequence[str], numbers: Ids) -> NDArray[np.bool_]:
    """Return True for each number of a symbol."""
    if symbol not in symbols:
        return np.zeros(len(numbers), dtype=np.bool_)
    return np.equal(numbers, symbols.index(symbol))


def _write(symbols: Sequence[str], numbers: Ids, directory: Path) -> Path:
    """Write distinct symbols, and the text as their numbers, into a new file of the directory."""
    path = directory / f"{uuid.uuid4().hex}.arrow"
    distinct = arrow.array(symbols, arrow.large_string())
    text = arrow.DictionaryArray.from_arrays(numbers.astype(smallest_dtype(len(symbols))), distinct)
    table = arrow.table({"text": text})
    with path.open("wb") as file:
        feather.write_feather(table, file, compression="uncompressed", chunksize=max(1, len(text)))
    return path


@dataclass(frozen=True)
class NumberedText:
    """The numbered chunks of each split, in order."""

    chunks: Mapping[str, list[NumberedChunk]]

    def total(self, name: str, *splits: str) -> int:
        """Return the sum of a count of the chunks, by default of all splits."""
        total = 0
        for split in splits or self.chunks:
            total += sum(getattr(chunk, name) for chunk in self.chunks[split])
        return total

    def counts(self, split: str, *, count_line_ends: bool) -> SplitCounts:
        """Count the tokens, words and bytes of a split."""
        tokens = self.total("tokens", split)
        if not tokens:
            raise CorpusInputError(f"the {split} split has only blanks; give more text, or another `split`")
        words = self.total("words", split)
        if count_line_ends:
            words += self.total("lines", split)
        return SplitCounts(tokens=tokens, words=words, bytes=self.total("bytes", split))

    def starts(self, split: str) -> Ids | None:
        """Return the places of the tokens that begin a document; None for text that is not divided into documents."""
        chunks = self.chunks[split]
        if not any(chunk.starts.size for chunk in chunks):
            return None
        firsts: list[Ids] = [np.zeros(1, dtype=np.int64)]
        tokens_before = 0
        for chunk in chunks:
            firsts.append(chunk.starts + tokens_before)
            tokens_before += chunk.tokens
        return np.unique(np.concatenate(firsts))

    def symbol_counts(self) -> dict[str, Counter[str]]:
        """Count the symbols of each split, in first-seen order."""
        counts = {split: Counter[str]() for split in self.chunks}
        for split, chunks in self.chunks.items():
            for chunk in chunks:
                symbols, numbers = chunk.read()
                times = np.bincount(numbers).tolist()
                counts[split].update(dict(zip(symbols, times, strict=True)))
        return counts

    def ids(self, split: str, vocab: Vocab, progress: Progress) -> Iterator[Ids]:
        """Yield the ids of each chunk, with -1 for unknown symbols, and remove its file."""
        for chunk in self.chunks[split]:
            symbols, numbers = chunk.read()
            chunk.path.unlink()
            yield vocab.table(symbols)[numbers]
            progress.advance(chunk.tokens)


Number = Callable[[Job], NumberedChunk]
_functions: list[Number] = []
"""Function that this worker process calls; with a vocabulary it is too large to be sent with each job."""


def map_in_order(function: Number, jobs: Iterable[Job], workers: int | None) -> Iterator[NumberedChunk]:
    """Map a function over jobs in `workers` processes, by default one per processor.

    With one, or in a worker of `multiprocessing.Pool`, which may not start processes, this process does all of it.
    """
    workers = workers or min(processors.available(), MAX_WORKERS)
    if workers == 1 or multiprocessing.current_process().daemon:
        yield from map(function, jobs)
        return
    # A fresh interpreter per worker: forking a process that runs threads, as torch does, may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_initialize, initargs=(function,)) as pool:
        try:
            with _main_module_hidden():
                chunks = pool.map(_call, jobs)  # starts the workers
            yield from chunks
        except BrokenProcessPool as error:
            raise TxlError("a worker process died, possibly because memory ran out; try `workers` 1") from error
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _main_module_hidden() -> Iterator[None]:
    """Hide the module that Python runs while the block starts processes.

    Each would import it first. A script of plain calls, without `if __name__ == "__main__":`, would run again there.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def _initialize(function: Number) -> None:
    _functions.append(function)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _call(job: Job) -> NumberedChunk:
    return _functions[0](job)


def _exit_with_parent() -> None:
    """Exit when the parent process is killed; otherwise the worker would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
