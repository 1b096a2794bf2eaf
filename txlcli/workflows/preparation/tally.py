"""Turns one chunk of text into symbols, counts and ids on disk: the work of one worker process."""

from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from txlcli.data.vocabulary import TokenizerName, Vocab, smallest_dtype
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.chunks import Chunk, Part, read

if TYPE_CHECKING:
    from txlcli.data.sentencepiece_model import SentencePieceModel

_ALL_CHARACTERS = 0x110000
FIRST_LOOK = 1 << 16  # bytes in which nearly all byte values of a chunk are found one by one


@dataclass(frozen=True, kw_only=True)
class Tally:
    """What one chunk holds.

    Its ids lie in the file `path`, as integers of the type `kind`. They number the chunk's own `symbols`, which stand
    in first-seen order; where `symbols` is None they are those of the vocabulary already. A byte is the character of
    the same number.
    """

    symbols: list[str] | None
    counts: NDArray[np.int64]
    path: Path
    kind: np.dtype[Any]
    words: int
    lines: int
    bytes: int


@dataclass(frozen=True)
class Job:
    """A chunk to read, and the file that its ids go to."""

    chunk: Chunk
    path: Path


# Symbols in first-seen order, how often each occurs, and the text as numbers of those symbols.
Numbered = tuple[list[str] | None, NDArray[np.int64], NDArray[Any]]


@dataclass(frozen=True)
class Tokenizer:
    """How text becomes symbols. Calling it with a job gives the Tally of the job's chunk."""

    kind: TokenizerName
    boundary: str | None = None
    lower_case: bool = False
    model: bytes = b""

    def __call__(self, job: Job) -> Tally:
        """Read and count one chunk, and write its ids.

        Raises:
            CorpusInputError: the text is not UTF-8 and the tokenizer is not byte.
        """
        parts = read(job.chunk)
        symbols, counts, ids = self._number(parts)
        # The ids stay here on disk: sending them to the parent would take longer than making them.
        job.path.write_bytes(np.ascontiguousarray(ids).data)
        lines = sum(count_lines(part.data) + part.open_end for part in parts)
        closing = lines if self.boundary is not None else 0
        words = ids.size - closing if self.kind == "word" else sum(count_words(part.data) for part in parts)
        return Tally(
            symbols=symbols,
            counts=counts,
            path=job.path,
            kind=ids.dtype,
            words=words,
            lines=lines,
            bytes=sum(len(part.data) for part in parts),
        )

    def _number(self, parts: list[Part]) -> Numbered:
        if self.kind == "byte":
            return _number_bytes(b"".join(part.data for part in parts))
        if self.kind == "char":
            return _number_characters("".join(decode(part) for part in parts))
        if self.kind == "word":
            return self._number_words(parts)
        ids = np.array(self._pieces.encode("".join(decode(part) for part in parts)), dtype=np.uint32)
        return None, np.bincount(ids, minlength=self._pieces.size), ids

    @cached_property
    def _rules(self) -> Vocab:
        closing = [] if self.boundary is None else [self.boundary]
        return Vocab("word", closing, boundary=0 if closing else None, lower_case=self.lower_case)

    @cached_property
    def _pieces(self) -> "SentencePieceModel":
        return Vocab("sentencepiece", model=self.model).pieces

    def _number_words(self, parts: list[Part]) -> Numbered:
        texts = [decode(part) + ("\n" if part.open_end else "") for part in parts]
        words = self._rules.split_words("".join(texts))
        numbers: defaultdict[str, int] = defaultdict()
        numbers.default_factory = numbers.__len__  # a word that is seen first gets the next number
        ids = np.fromiter(map(numbers.__getitem__, words), dtype=np.uint32, count=len(words))
        numbers.default_factory = None  # it holds the dictionary that holds it, which would stay until a collection
        return list(numbers), np.bincount(ids, minlength=len(numbers)), ids.astype(smallest_dtype(len(numbers)))


def decode(part: Part) -> str:
    """The text of a part.

    Raises:
        CorpusInputError: it is not UTF-8; the message names file and byte.
    """
    try:
        return part.data.decode()
    except UnicodeDecodeError as error:
        offset = part.piece.start + error.start
        raise CorpusInputError(
            f"{part.piece.path}: byte {offset:,} is not valid UTF-8; repair the file or take --tokenizer byte"
        ) from None


def _number_bytes(data: bytes) -> Numbered:
    counts = _count_bytes(data)
    seen = _in_order(data, np.flatnonzero(counts).tolist())
    table = bytearray(256)
    for number, value in enumerate(seen):
        table[value] = number
    return [chr(value) for value in seen], counts[seen], np.frombuffer(data.translate(bytes(table)), dtype=np.uint8)


def _count_bytes(data: bytes) -> NDArray[np.int64]:
    """How often each byte value occurs. Counted in pairs, which is twice as quick as one by one."""
    even = len(data) & ~1
    pairs = np.bincount(np.frombuffer(data, dtype=np.uint16, count=even >> 1), minlength=1 << 16).reshape(256, 256)
    counts: NDArray[np.int64] = pairs.sum(axis=0) + pairs.sum(axis=1)
    if even < len(data):
        counts[data[-1]] += 1
    return counts


def _in_order(data: bytes, values: list[int]) -> list[int]:
    """The byte values in first-seen order."""
    head = data[:FIRST_LOOK]
    first = {value: place for value in values if (place := head.find(value)) >= 0}
    late = [value for value in values if value not in first]
    if late:
        # Searching for each late value would scan much of the data again: find all of them in one pass.
        marks = bytearray(256)
        for value in late:
            marks[value] = 1
        places = np.flatnonzero(np.frombuffer(data.translate(bytes(marks)), dtype=np.uint8))
        found, where = np.unique(np.frombuffer(data, dtype=np.uint8)[places], return_index=True)
        first |= dict(zip(found.tolist(), places[where].tolist(), strict=True))
    return sorted(first, key=first.__getitem__)


def _number_characters(text: str) -> Numbered:
    if text.isascii():
        return _number_bytes(text.encode())
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    first = np.full(_ALL_CHARACTERS, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)  # of several places the last one written stays: the first
    present = np.flatnonzero(first >= 0)
    seen = present[np.argsort(first[present])]
    first[seen] = np.arange(seen.size)
    ids = first[codes].astype(smallest_dtype(seen.size))
    return [chr(code) for code in seen.tolist()], np.bincount(ids, minlength=seen.size), ids


# The blanks of str.split: one byte long, and longer ones, which are told by their first byte.
_BLANK, _LEAD = 1, 2
_LONG_BLANKS = [chr(code).encode() for code in range(0x80, 0x10000) if chr(code).isspace()]
_LEADS = {blank[0] for blank in _LONG_BLANKS}
_BYTE_CLASSES = bytes(
    _LEAD if value in _LEADS else _BLANK if value < 0x80 and chr(value).isspace() else 0 for value in range(256)
)


def count_words(data: bytes) -> int:
    """How many words str.split finds in the text, without decoding it."""
    if not data:
        return 0
    kinds = np.frombuffer(bytearray(data.translate(_BYTE_CLASSES)), dtype=np.uint8)
    if not data.isascii():
        _mark_long_blanks(np.frombuffer(data, dtype=np.uint8), kinds)
    blank_here = kinds == _BLANK
    return int(np.count_nonzero(blank_here[:-1] & ~blank_here[1:])) + (not blank_here[0])


def _mark_long_blanks(values: NDArray[np.uint8], kinds: NDArray[np.uint8]) -> None:
    leads = np.flatnonzero(kinds == _LEAD)
    for length in (2, 3):
        places = leads[leads <= values.size - length]
        codes = sum(values[places + offset].astype(np.uint32) << (8 * offset) for offset in range(length))
        wanted = [int.from_bytes(blank, "little") for blank in _LONG_BLANKS if len(blank) == length]
        found = places[np.isin(codes, wanted)]
        for offset in range(length):
            kinds[found + offset] = _BLANK


def count_lines(data: bytes) -> int:
    """How many line ends there are, whichever of the three conventions the text follows."""
    carriage = data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0
    return data.count(b"\n") + carriage
