"""Encodes one chunk of text as symbols, their counts and a file of ids: the task of a worker process."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.data.sentencepiece_model import SentencePieceModel
from txlcli.data.vocabulary import TokenizerName, Vocab, smallest_dtype
from txlcli.errors import CorpusInputError
from txlcli.workflows.preparation.chunks import Chunk, Part, read_chunk

_ALL_CHARACTERS = 0x110000
MAX_BYTES_OF_A_STRING = 2**31 - 1  # for Arrow; longer ones take more memory
SEARCHED_HEAD = 1 << 16  # bytes at the beginning of a chunk that contain nearly all of its byte values


@dataclass(frozen=True, kw_only=True)
class EncodedChunk:
    """One chunk after encoding.

    The file `path` holds its ids, as integers of type `dtype`. They are indices of the chunk's own `symbols`, which are
    in first-seen order; if `symbols` is None they are ids of the vocabulary. A byte is represented by the character of
    the same number.
    """

    symbols: Any
    """List of texts, or an Arrow array of words, which is sent to the parent process in less time; or None."""
    counts: NDArray[np.int64]
    path: Path
    dtype: np.dtype[Any]
    words: int
    lines: int
    bytes: int


@dataclass(frozen=True)
class Job:
    """A chunk to read, and the file for its ids."""

    chunk: Chunk
    path: Path


# Symbols in first-seen order, how often each occurs, and the text as numbers of those symbols.
Numbered = tuple[Any, NDArray[np.int64], NDArray[Any]]


@dataclass(frozen=True)
class ChunkEncoder:
    """Splits text into symbols and encodes it; call it with a job."""

    tokenizer: TokenizerName
    boundary: str | None = None
    lower_case: bool = False
    model: bytes = b""

    def __call__(self, job: Job) -> EncodedChunk:
        """Read one chunk, count its symbols and write its ids.

        Raises:
            CorpusInputError: the text is not UTF-8 and the tokenizer is not byte.
        """
        parts = read_chunk(job.chunk)
        symbols, counts, ids = self._number(parts)
        # Written to disk here: sending the ids to the parent process would take longer than computing them.
        job.path.write_bytes(np.ascontiguousarray(ids).data)
        lines = sum(count_lines(part.data) + part.lacks_line_end for part in parts)
        closing = lines if self.boundary is not None else 0
        words = ids.size - closing if self.tokenizer == "word" else sum(count_words(part.data) for part in parts)
        return EncodedChunk(
            symbols=symbols,
            counts=counts,
            path=job.path,
            dtype=ids.dtype,
            words=words,
            lines=lines,
            bytes=sum(len(part.data) for part in parts),
        )

    def _number(self, parts: list[Part]) -> Numbered:
        if self.tokenizer == "byte":
            return _number_bytes(b"".join(part.data for part in parts))
        if self.tokenizer == "char":
            return _number_characters("".join(decode(part) for part in parts))
        if self.tokenizer == "word":
            return _number_words(self._text_of_words(parts))
        ids = np.array(self._sentencepiece.encode("".join(decode(part) for part in parts)), dtype=np.uint32)
        return None, np.bincount(ids, minlength=self._sentencepiece.size), ids

    @cached_property
    def _word_rules(self) -> Vocab:
        closing = [] if self.boundary is None else [self.boundary]
        return Vocab("word", closing, boundary=0 if closing else None, lower_case=self.lower_case)

    @cached_property
    def _sentencepiece(self) -> SentencePieceModel:
        return Vocab("sentencepiece", model=self.model).sentencepiece

    def _text_of_words(self, parts: list[Part]) -> str:
        """Return the text with the boundary in place of line ends."""
        texts = [decode(part) + ("\n" if part.lacks_line_end else "") for part in parts]
        return self._word_rules.spell_line_ends("".join(texts))


def decode(part: Part) -> str:
    """Decode the text of a part.

    Raises:
        CorpusInputError: it is not UTF-8; the message names the file and the byte.
    """
    try:
        return part.data.decode()
    except UnicodeDecodeError as error:
        offset = part.piece.start + error.start
        raise CorpusInputError(
            f"{part.piece.path}: byte {offset:,} is not valid UTF-8; repair the file or use --tokenizer byte"
        ) from None


def _number_bytes(data: bytes) -> Numbered:
    counts = _count_bytes(data)
    seen = _in_order(data, np.flatnonzero(counts).tolist())
    table = bytearray(256)
    for number, value in enumerate(seen):
        table[value] = number
    return [chr(value) for value in seen], counts[seen], np.frombuffer(data.translate(bytes(table)), dtype=np.uint8)


def _count_bytes(data: bytes) -> NDArray[np.int64]:
    """Count each byte value. Counting pairs is twice as fast as counting single bytes."""
    even = len(data) & ~1
    pairs = np.bincount(np.frombuffer(data, dtype=np.uint16, count=even >> 1), minlength=1 << 16).reshape(256, 256)
    counts: NDArray[np.int64] = pairs.sum(axis=0) + pairs.sum(axis=1)
    if even < len(data):
        counts[data[-1]] += 1
    return counts


def _in_order(data: bytes, values: list[int]) -> list[int]:
    """Sort the byte values in first-seen order."""
    head = data[:SEARCHED_HEAD]
    first = {value: offset for value in values if (offset := head.find(value)) >= 0}
    late = [value for value in values if value not in first]
    if late:
        # Searching for each late value would scan the data several times; this finds all of them in one pass.
        marks = bytearray(256)
        for value in late:
            marks[value] = 1
        offsets = np.flatnonzero(np.frombuffer(data.translate(bytes(marks)), dtype=np.uint8))
        marked, indices = np.unique(np.frombuffer(data, dtype=np.uint8)[offsets], return_index=True)
        first |= dict(zip(marked.tolist(), offsets[indices].tolist(), strict=True))
    return sorted(first, key=first.__getitem__)


def _number_characters(text: str) -> Numbered:
    if text.isascii():
        return _number_bytes(text.encode())
    codes = np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32)
    first = np.full(_ALL_CHARACTERS, -1, dtype=np.int64)
    first[codes[::-1]] = np.arange(codes.size - 1, -1, -1)  # reversed: the last assignment, the first occurrence, wins
    present = np.flatnonzero(first >= 0)
    seen = present[np.argsort(first[present])]
    first[seen] = np.arange(seen.size)
    ids = first[codes].astype(smallest_dtype(seen.size))
    return [chr(code) for code in seen.tolist()], np.bincount(ids, minlength=seen.size), ids


def _number_words(text: str) -> Numbered:
    """Number the words that str.split would return."""
    import pyarrow as arrow
    from pyarrow import compute

    data = text.strip().encode()  # Arrow finds an empty word before a blank at the beginning
    if not data:
        return [], np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.uint8)
    kind = arrow.string() if len(data) <= MAX_BYTES_OF_A_STRING else arrow.large_string()
    words = compute.utf8_split_whitespace(arrow.array([data], kind)).values.dictionary_encode()
    seen = words.dictionary
    ids = words.indices.to_numpy()
    return seen, np.bincount(ids, minlength=len(seen)), ids.astype(smallest_dtype(len(seen)))


# Blanks as str.split defines them: single bytes, and longer ones, recognized by their first byte.
_BLANK, _LEAD = 1, 2
_LONG_BLANKS = [chr(code).encode() for code in range(0x80, 0x10000) if chr(code).isspace()]
_LEADS = {blank[0] for blank in _LONG_BLANKS}
_BYTE_CLASSES = bytes(
    _LEAD if value in _LEADS else _BLANK if value < 0x80 and chr(value).isspace() else 0 for value in range(256)
)


def count_words(data: bytes) -> int:
    """Count the words that str.split would return, without decoding the text."""
    if not data:
        return 0
    classes = np.frombuffer(bytearray(data.translate(_BYTE_CLASSES)), dtype=np.uint8)
    if not data.isascii():
        _mark_long_blanks(np.frombuffer(data, dtype=np.uint8), classes)
    is_blank = classes == _BLANK
    return int(np.count_nonzero(is_blank[:-1] & ~is_blank[1:])) + (not is_blank[0])


def _mark_long_blanks(values: NDArray[np.uint8], classes: NDArray[np.uint8]) -> None:
    leads = np.flatnonzero(classes == _LEAD)
    for length in (2, 3):
        starts = leads[leads <= values.size - length]
        codes = sum(values[starts + offset].astype(np.uint32) << (8 * offset) for offset in range(length))
        wanted = [int.from_bytes(blank, "little") for blank in _LONG_BLANKS if len(blank) == length]
        blanks = starts[np.isin(codes, wanted)]
        for offset in range(length):
            classes[blanks + offset] = _BLANK


def count_lines(data: bytes) -> int:
    """Count line ends: LF, CR LF or CR."""
    carriage = data.count(b"\r") - data.count(b"\r\n") if b"\r" in data else 0
    return data.count(b"\n") + carriage
