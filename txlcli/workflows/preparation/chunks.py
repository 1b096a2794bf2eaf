"""Cuts the text of a split into chunks that end between words; worker processes number their symbols."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import feather

from txlcli.corpora.corpus import Slice, Slices
from txlcli.data.vocabulary import REPLACEMENT, Vocab, count_words, smallest_dtype
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.planning import CHUNK


def cut_into_chunks(slices: Slices, size: int = CHUNK) -> Iterator[Slices]:
    """Yield chunks of about `size` bytes in reading order, cut after a line end, else after a blank, else a character.

    The cuts depend only on the text, so they are the same for any number of workers.
    """
    held: list[Slice] = []
    filled = 0
    for piece in slices:
        if held and filled + piece.size > size:
            yield tuple(held)
            held, filled = [], 0
        rest = piece
        while rest.size > size:
            head = rest.read(0, size)
            end = head.rfind(b"\n") + 1 or head.rfind(b" ") + 1 or _character_end(rest, size)
            yield (Slice(rest.path, rest.start, rest.start + end),)
            rest = replace(rest, start=rest.start + end)
        if rest.size:
            held.append(rest)
            filled += rest.size
    if held:
        yield tuple(held)


def _character_end(piece: Slice, offset: int) -> int:
    """Return the first offset, from `offset` on, that is not inside a UTF-8 character."""
    following = piece.read(offset, offset + 3)
    return offset + next((n for n, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


def align_to_characters(slices: Slices) -> Slices:
    """Move each end of a slice that lies inside a UTF-8 character behind that character."""
    files = ((piece, Slice(piece.path, 0, piece.path.stat().st_size)) for piece in slices)
    return tuple(
        replace(piece, start=_character_end(file, piece.start), stop=_character_end(file, piece.stop))
        for piece, file in files
    )


def join_files(slices: Slices, *, close_last: bool) -> Slices:
    """Add the line end that a slice's last line lacks before the next slice.

    With `close_last`, which words need, also after the last slice, unless the text has no word.
    """
    pieces = [piece for piece in slices if piece.size]
    is_open = [piece.read(piece.size - 1) not in (b"\n", b"\r") for piece in pieces]
    joined = [replace(piece, tail=b"\n") if lacks else piece for piece, lacks in zip(pieces, is_open, strict=True)]
    closes = close_last and any(block.strip() for piece in pieces for block in piece.blocks())
    return (*joined[:-1], *(joined if closes else pieces)[-1:])


def read_chunk(chunk: Slices, *, is_utf8: bool) -> bytes:
    """Read the bytes of a chunk; if `is_utf8`, they must be UTF-8."""
    parts = [piece.read() for piece in chunk]
    for piece, data in zip(chunk, parts, strict=True) if is_utf8 else ():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            raise CorpusInputError(
                f"{piece.path}: byte {piece.start + error.start:,} is not valid UTF-8; give its `encoding`, such as "
                "cp1252, repair the file, or use `tokenizer` byte"
            ) from None
    return b"".join(parts)


@dataclass(frozen=True, kw_only=True)
class NumberedChunk:
    """Counts of one chunk; the file `path` has its symbols, and its text as their numbers."""

    path: Path
    tokens: int
    words: int
    lines: int
    bytes: int
    starts: NDArray[np.integer]
    """Places of the tokens that begin a document."""
    nuls: int
    """Number of NUL bytes."""
    invalid: int
    """Number of places that are not UTF-8, which only bytes may have."""
    boundaries: int
    """Times that the text itself has the symbol that ends a line."""
    literal_unknown: int
    """Times that the text itself has the symbol of unknown ones."""

    def read(self) -> tuple[list[str], NDArray[np.integer]]:
        """Return the distinct symbols in first-seen order, and the text as their numbers."""
        text = feather.read_table(self.path, memory_map=False).column(0).combine_chunks()
        return text.dictionary.to_pylist(), text.indices.to_numpy()


Job = tuple[Slices, Sequence[int]]
"""A chunk to read, and the offsets in it at which documents begin."""


def number_chunk(rules: Vocab, directory: Path, job: Job, *, sentences: bool) -> NumberedChunk:
    """Split a chunk into symbols by the rules of a vocabulary, and write their numbers into a file of the directory.

    With `sentences`, a document begins after each boundary.
    """
    chunk, starts = job
    data = read_chunk(chunk, is_utf8=rules.tokenizer != "byte")
    cuts = sorted({0, *starts})
    symbols, numbers, sizes = rules.number([data[start:end] for start, end in pairwise([*cuts, len(data)])])
    places = np.cumsum([0, *sizes[:-1]])[np.isin(cuts, starts)]
    path = directory / f"{uuid.uuid4().hex}.arrow"
    distinct = arrow.array(symbols, arrow.large_string())
    text = arrow.DictionaryArray.from_arrays(numbers.astype(smallest_dtype(len(symbols))), distinct)
    feather.write_feather(arrow.table({"text": text}), path, compression="uncompressed", chunksize=max(1, len(text)))
    marks = ["" if mark is None else rules.symbols[mark] for mark in (rules.boundary, rules.unknown)]
    ends, unknown = (numbers == symbols.index(mark) if mark in symbols else np.zeros(0, np.bool_) for mark in marks)
    words, lines = count_words(data, len(text), rules.tokenizer, has_boundary=bool(marks[0]))
    return NumberedChunk(
        path=path,
        tokens=len(text),
        words=words,
        lines=lines,
        bytes=len(data),
        starts=np.flatnonzero(ends) + 1 if sentences else places,
        nuls=data.count(0),
        invalid=_count_invalid(data) if rules.tokenizer == "byte" else 0,
        boundaries=data.count(marks[0].encode()) if marks[0] else 0,
        literal_unknown=int(unknown.sum()),
    )


def _count_invalid(data: bytes) -> int:
    return data.decode(errors="replace").count(REPLACEMENT) - data.count(REPLACEMENT.encode())
