"""Cuts the text of a split into chunks that end between words; worker processes count and encode them."""

import functools
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from txlcli.corpora.corpus import Slice
from txlcli.data.vocabulary import REPLACEMENT, Vocab, count_words, smallest_dtype
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
    """Counts of one chunk after encoding; its ids are an array in the file `path`."""

    path: Path
    tokens: int
    unknown: int
    """Number of tokens whose symbol has no id of its own."""
    literal_unknown: int
    """Times that the text itself has the unknown symbol."""
    words: int
    lines: int
    bytes: int
    starts: NDArray[np.integer]
    """Places of the ids that begin a document."""
    nuls: int
    """Number of NUL bytes."""
    invalid: int
    """Number of places that are not UTF-8, which only bytes may have."""
    boundaries: int
    """Times that the text itself has the symbol that ends a line."""


Job = tuple[Chunk, Sequence[int]]
"""A chunk to read, and the offsets in it at which documents begin."""


def count_symbols(rules: Vocab, job: Job) -> Counter[str]:
    """Count the symbols of a chunk, in first-seen order, as a vocabulary splits the text."""
    symbols, numbers = rules.number(read_chunk(job[0], is_utf8=rules.tokenizer != "byte"))
    return Counter(dict(zip(symbols, np.bincount(numbers).tolist(), strict=True)))


def encode_chunk(vocab_file: Path, job: Job, *, sentences: bool) -> EncodedChunk:
    """Encode one chunk into a file next to the vocabulary; with `sentences`, a document begins after each boundary."""
    chunk, starts = job
    vocab = _open_vocabulary(vocab_file)
    data = read_chunk(chunk, is_utf8=vocab.tokenizer != "byte")
    cuts = sorted({0, *starts})
    documents = [vocab.encode_counting(data[start:end]) for start, end in pairwise([*cuts, len(data)])]
    ids = np.concatenate([ids for ids, _ in documents])
    places = np.cumsum([0, *(len(ids) for ids, _ in documents[:-1])])[np.isin(cuts, starts)]
    path = vocab_file.with_name(f"{uuid.uuid4().hex}.npy")
    np.save(path, ids.astype(smallest_dtype(vocab.size)))  # faster than to send them to the parent process
    boundary = vocab.symbols[vocab.boundary] if vocab.boundary is not None and vocab.symbols else ""
    words, lines = count_words(data, ids.size, vocab.tokenizer, has_boundary=bool(boundary))
    unknown = sum(count for _, count in documents)
    return EncodedChunk(
        path=path,
        tokens=ids.size,
        unknown=unknown,
        literal_unknown=int((ids == vocab.unknown).sum()) - unknown,
        words=words,
        lines=lines,
        bytes=len(data),
        starts=np.flatnonzero(ids == vocab.boundary) + 1 if sentences else places,
        nuls=data.count(0),
        invalid=_count_invalid(data) if vocab.tokenizer == "byte" else 0,
        boundaries=data.count(boundary.encode()) if boundary else 0,
    )


@functools.lru_cache(maxsize=1)
def _open_vocabulary(path: Path) -> Vocab:
    """Read the vocabulary once per process: sending it with each chunk would take longer."""
    return Vocab.from_json(path.read_text(encoding="utf-8"))


def _count_invalid(data: bytes) -> int:
    return data.decode(errors="replace").count(REPLACEMENT) - data.count(REPLACEMENT.encode())
