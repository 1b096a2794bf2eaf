"""Cuts the text of a split into chunks that end between words, and encodes each: the task of a worker process."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.data.sentencepiece_model import SentencePieceModel
from txlcli.data.vocabulary import TokenizerName, Vocab, smallest_dtype
from txlcli.errors import CorpusInputError

CHUNK = 2 << 20  # bytes; the unit of work and of memory
TAIL = 1 << 16  # bytes before the end of a chunk that are searched for a line end
LONGEST_WORD = 64 << 20  # bytes; a longer word is cut between characters
_MAX_BYTES_OF_A_STRING = 2**31 - 1  # for Arrow; longer ones take more memory

Chunk = tuple[Slice, ...]
"""Bytes of one file, or several small files."""


def cut_into_chunks(
    slices: Iterable[Slice], size: int = CHUNK, *, tail: int = TAIL, longest_word: int = LONGEST_WORD
) -> Iterator[Chunk]:
    """Yield chunks of about `size` bytes in reading order, cut after a line end, else after a blank, else a character.

    The cuts depend only on the text, so they are the same for any number of workers.
    """
    held: list[Slice] = []
    filled = 0
    for piece in slices:
        if held and filled + piece.size > size:
            yield tuple(held)
            held, filled = [], 0
        start = piece.start
        while piece.stop - start > size:
            stop = _cut_before(piece, max(start + size - tail, start), start + size)
            stop = _cut_after(piece, start + size, tail, longest_word) if stop is None else stop
            yield (Slice(piece.path, start, stop),)
            start = stop
        if start < piece.stop:
            held.append(Slice(piece.path, start, piece.stop))
            filled += piece.stop - start
    if held:
        yield tuple(held)


def _bytes_of(path: Path, start: int, stop: int) -> bytes:
    with path.open("rb") as file:
        file.seek(start)
        return file.read(stop - start)


def _cut_before(piece: Slice, low: int, high: int) -> int | None:
    """Return the offset after the last line end, else after the last blank, between `low` and `high`."""
    tail = _bytes_of(piece.path, low, high)
    return next((low + end for mark in (b"\n", b" ") if (end := tail.rfind(mark) + 1)), None)


def _cut_after(piece: Slice, near: int, block_size: int, longest_word: int) -> int:
    """Return the end of the first word that ends after `near`, or the end of a character if that word is too long."""
    offset, stop = near, min(piece.stop, near + longest_word)
    while offset < stop and (block := _bytes_of(piece.path, offset, min(offset + block_size, piece.stop))):
        ends = [end for mark in (b"\n", b" ") if (end := block.find(mark) + 1)]
        if ends:
            return offset + min(ends)
        offset += len(block)
    return _character_end(piece.path, offset, piece.stop)


def _character_end(path: Path, offset: int, stop: int) -> int:
    """Return the first offset, from `offset` on, that is not inside a UTF-8 character."""
    following = _bytes_of(path, offset, min(offset + 3, stop))
    return offset + next((n for n, byte in enumerate(following) if byte & 0xC0 != 0x80), len(following))


def align_to_characters(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Move each end of a slice that lies inside a UTF-8 character behind that character."""
    moved = []
    for piece in slices:
        size = piece.path.stat().st_size
        start, stop = (_character_end(piece.path, offset, size) for offset in (piece.start, piece.stop))
        moved.append(Slice(piece.path, start, stop))
    return tuple(moved)


@dataclass(frozen=True)
class Part:
    """The bytes of one slice."""

    piece: Slice
    data: bytes
    lacks_line_end: bool
    """True if the slice reaches the end of its file and the last line has no line end."""

    @property
    def text(self) -> str:
        """The text; it must be UTF-8."""
        try:
            return self.data.decode()
        except UnicodeDecodeError as error:
            offset = self.piece.start + error.start
            raise CorpusInputError(
                f"{self.piece.path}: byte {offset:,} is not valid UTF-8; repair the file or use `tokenizer` byte"
            ) from None


def read_chunk(chunk: Chunk) -> list[Part]:
    """Read the bytes of a chunk, one part per file."""
    parts = []
    for piece in chunk:
        data = _bytes_of(piece.path, piece.start, piece.stop)
        at_end = piece.stop >= piece.path.stat().st_size
        parts.append(Part(piece, data, at_end and not data.endswith((b"\n", b"\r"))))
    return parts


@dataclass(frozen=True, kw_only=True)
class EncodedChunk:
    """One chunk after encoding.

    The file `path` holds its ids, as integers of type `dtype`. They are indices of the chunk's own `symbols`, which are
    in first-seen order; if `symbols` is None they are ids of the vocabulary. A byte is represented by the character of
    the same number.
    """

    symbols: Any
    """Arrow array of texts, or None."""
    counts: NDArray[np.int64]
    path: Path
    dtype: np.dtype[Any]
    words: int
    lines: int
    bytes: int


Job = tuple[Chunk, Path]
"""A chunk to read, and the file for its ids."""


@dataclass(frozen=True)
class ChunkEncoder:
    """Splits text into symbols and encodes it; call it with a job."""

    tokenizer: TokenizerName
    boundary: str | None = None
    lower_case: bool = False
    model: bytes = b""

    def __call__(self, job: Job) -> EncodedChunk:
        """Read one chunk, count its symbols and write its ids."""
        chunk, path = job
        parts = read_chunk(chunk)
        symbols, ids = self._number(parts)
        # Written to disk here: sending the ids to the parent process would take longer than computing them.
        path.write_bytes(np.ascontiguousarray(ids).data)
        lines = sum(count_lines(part.data) + part.lacks_line_end for part in parts)
        closing = lines if self.boundary is not None else 0
        return EncodedChunk(
            symbols=symbols,
            counts=np.bincount(ids, minlength=self._sentencepiece.size if symbols is None else len(symbols)),
            path=path,
            dtype=ids.dtype,
            words=ids.size - closing if self.tokenizer == "word" else sum(count_words(part.data) for part in parts),
            lines=lines,
            bytes=sum(len(part.data) for part in parts),
        )

    def _number(self, parts: list[Part]) -> tuple[Any, NDArray[Any]]:
        """Return the symbols in first-seen order, and the text as indices of them; see `EncodedChunk`."""
        if self.tokenizer == "byte":
            return _number_codes(np.frombuffer(b"".join(part.data for part in parts), dtype=np.uint8))
        if self.tokenizer == "word":
            texts = [part.text + ("\n" if part.lacks_line_end else "") for part in parts]
            return _number_words(self._word_rules.spell_line_ends("".join(texts)))
        text = "".join(part.text for part in parts)
        if self.tokenizer == "char":
            return _number_codes(np.frombuffer(text.encode("utf-32-le"), dtype=np.uint32))
        return None, np.array(self._sentencepiece.encode(text), dtype=np.uint32)

    @cached_property
    def _word_rules(self) -> Vocab:
        closing = [] if self.boundary is None else [self.boundary]
        return Vocab("word", closing, boundary=0 if closing else None, lower_case=self.lower_case)

    @cached_property
    def _sentencepiece(self) -> SentencePieceModel:
        return Vocab("sentencepiece", model=self.model).sentencepiece


def _number_codes(codes: NDArray[Any]) -> tuple[Any, NDArray[Any]]:
    """Number bytes, or the code points of characters."""
    import pyarrow as arrow

    encoded = arrow.array(codes).dictionary_encode()
    symbols = arrow.array([chr(code) for code in encoded.dictionary.to_pylist()], arrow.string())
    return symbols, encoded.indices.to_numpy().astype(smallest_dtype(len(symbols)))


def _number_words(text: str) -> tuple[Any, NDArray[Any]]:
    """Number the words that str.split would return."""
    import pyarrow as arrow
    from pyarrow import compute

    data = text.strip().encode()  # Arrow finds an empty word before a blank at the beginning
    string = arrow.string() if len(data) <= _MAX_BYTES_OF_A_STRING else arrow.large_string()
    words = compute.utf8_split_whitespace(arrow.array([data] if data else [], string)).values.dictionary_encode()
    return words.dictionary, words.indices.to_numpy().astype(smallest_dtype(len(words.dictionary)))


def count_words(data: bytes) -> int:
    """Count the words that str.split would return; bytes that are not UTF-8 belong to words."""
    return len(data.decode(errors="replace").split())


def count_lines(data: bytes) -> int:
    """Count line ends: LF, CR LF or CR."""
    return data.count(b"\n") + data.count(b"\r") - data.count(b"\r\n")
