"""Cuts the text of a split into chunks that end between words, and encodes each: the task of a worker process."""

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.data.sentencepiece_model import SentencePieceModel
from txlcli.data.vocabulary import REPLACEMENT, TokenizerName, count_words, smallest_dtype, spell_line_ends
from txlcli.errors import CorpusInputError

CHUNK = 2 << 20  # bytes; the unit of work and of memory

Chunk = tuple[Slice, ...]
"""Bytes of one file, or several small files."""


def cut_into_chunks(slices: Iterable[Slice], size: int = CHUNK) -> Iterator[Chunk]:
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


def align_to_characters(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """Move each end of a slice that lies inside a UTF-8 character behind that character."""
    files = ((piece, Slice(piece.path, 0, piece.path.stat().st_size)) for piece in slices)
    return tuple(
        replace(piece, start=_character_end(file, piece.start), stop=_character_end(file, piece.stop))
        for piece, file in files
    )


def join_files(slices: Iterable[Slice], *, close_last: bool) -> tuple[Slice, ...]:
    """Add the line end that a slice's last line lacks before the next slice.

    With `close_last`, which words need, also after the last slice, unless the text has no word.
    """
    pieces = [piece for piece in slices if piece.size]
    is_open = [piece.read(piece.size - 1) not in (b"\n", b"\r") for piece in pieces]
    joined = [replace(piece, tail=b"\n") if lacks else piece for piece, lacks in zip(pieces, is_open, strict=True)]
    closes = close_last and any(block.strip() for piece in pieces for block in piece.blocks())
    return (*joined[:-1], *(joined if closes else pieces)[-1:])


def read_chunk(chunk: Chunk, *, is_utf8: bool) -> bytes:
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
class EncodedChunk:
    """One chunk after encoding; the file `path` holds its ids, an array of indices of the chunk's own symbols."""

    symbols: Any
    """Arrow array of texts, in first-seen order: words, characters, the character of each byte's number, or the digits
    of each id of a SentencePiece model."""
    counts: NDArray[np.int64]
    path: Path
    words: int
    lines: int
    bytes: int
    starts: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    """Places of the ids that begin a document."""
    nuls: int = 0
    """Number of NUL bytes."""
    invalid: int = 0
    """Number of places that are not UTF-8, which only bytes may have."""
    boundaries: int = 0
    """Times that the text itself has the symbol that ends a line."""


Job = tuple[Chunk, Path, list[int]]
"""A chunk to read, the file for its ids, and the offsets in the chunk of the documents whose places are wanted."""


@dataclass(frozen=True)
class ChunkEncoder:
    """Splits text into symbols and encodes it; call it with a job."""

    tokenizer: TokenizerName
    boundary: str | None = None
    lower_case: bool = False
    model: bytes = b""

    def __call__(self, job: Job) -> EncodedChunk:
        """Read one chunk, count its symbols and write its ids."""
        chunk, path, starts = job
        data = read_chunk(chunk, is_utf8=self.tokenizer != "byte")
        cuts = sorted({0, *starts})
        symbols, ids, lengths = self._number([data[start:end] for start, end in pairwise([*cuts, len(data)])])
        with path.open("wb") as file:  # sending the ids to the parent process would take longer than computing them
            np.save(file, ids)
        boundary = self.boundary or ""
        words, lines = count_words(data, ids.size, self.tokenizer, has_boundary=bool(boundary))
        return EncodedChunk(
            symbols=symbols,
            counts=np.bincount(ids, minlength=len(symbols)),
            path=path,
            words=words,
            lines=lines,
            bytes=len(data),
            starts=(np.cumsum(lengths) - lengths)[np.isin(cuts, starts)],
            nuls=data.count(0),
            invalid=_count_invalid(data) if self.tokenizer == "byte" else 0,
            boundaries=data.count(boundary.encode()) if boundary else 0,
        )

    def _number(self, documents: Sequence[bytes]) -> tuple[Any, NDArray[Any], NDArray[np.int64]]:
        """Return the symbols in first-seen order, the text as indices of them, and the number of ids per document."""
        if self.tokenizer == "byte":
            return *_number_codes(np.frombuffer(b"".join(documents), dtype=np.uint8), chr), _lengths(documents)
        texts = [document.decode() for document in documents]
        if self.tokenizer == "word":
            return _number_words(spell_line_ends(text, self.boundary, lower_case=self.lower_case) for text in texts)
        if self.tokenizer == "char":
            codes = np.frombuffer("".join(texts).encode("utf-32-le"), dtype=np.uint32)
            return *_number_codes(codes, chr), _lengths(texts)
        ids = [np.array(_load(self.model).encode(text), dtype=np.uint32) for text in texts]
        return *_number_codes(np.concatenate(ids), str), _lengths(ids)


def _count_invalid(data: bytes) -> int:
    return data.decode(errors="replace").count(REPLACEMENT) - data.count(REPLACEMENT.encode())


def _lengths(documents: Sequence[Sized]) -> NDArray[np.int64]:
    return np.array([len(document) for document in documents], dtype=np.int64)


_load = functools.cache(SentencePieceModel)  # a worker process unpickles an encoder for each job


def _number_codes(codes: NDArray[Any], symbol: Callable[[int], str]) -> tuple[Any, NDArray[Any]]:
    """Number bytes, the code points of characters, or ids."""
    import pyarrow as arrow

    encoded = arrow.array(codes).dictionary_encode()
    symbols = arrow.array(map(symbol, encoded.dictionary.to_pylist()), arrow.large_string())
    return symbols, encoded.indices.to_numpy().astype(smallest_dtype(len(symbols)))


def _number_words(texts: Iterable[str]) -> tuple[Any, NDArray[Any], NDArray[np.int64]]:
    """Number the words that str.split would return; also return their number in each text."""
    import pyarrow as arrow
    from pyarrow import compute

    stripped = [text.strip() or None for text in texts]  # Arrow finds an empty word before a blank at the beginning
    lists = compute.utf8_split_whitespace(arrow.array(stripped, arrow.large_string()))
    words = lists.flatten().dictionary_encode()
    counts = compute.fill_null(compute.list_value_length(lists), 0).to_numpy()
    return words.dictionary, words.indices.to_numpy().astype(smallest_dtype(len(words.dictionary))), counts
