"""Cuts the text of a split into chunks between words, whatever the files it lies in."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from corpora.corpus import Slice

CHUNK = 2 << 20  # bytes; the unit of work and of memory
TAIL = 1 << 16  # bytes before the end of a chunk in which a line end is looked for
LONGEST_WORD = 64 << 20  # bytes; beyond it a text is cut between characters

Chunk = tuple[Slice, ...]


def chunks_of(slices: Iterable[Slice], size: int = CHUNK) -> Iterator[Chunk]:
    """Chunks of about `size` bytes in reading order, cut after a line end, else after a blank, else between characters.

    Small files share a chunk. The cuts depend on the text only, so any number of workers sees the same chunks.
    """
    held: list[Slice] = []
    filled = 0
    for piece in slices:
        if held and filled + piece.size > size:
            yield tuple(held)
            held, filled = [], 0
        start = piece.start
        while piece.stop - start > size:
            stop = _cut(piece, start, start + size)
            yield (Slice(piece.path, start, stop),)
            start = stop
        if start < piece.stop:
            held.append(Slice(piece.path, start, piece.stop))
            filled += piece.stop - start
    if held:
        yield tuple(held)


def _cut(piece: Slice, start: int, near: int) -> int:
    """A place to cut at or before `near`, or after it where no word ends before."""
    with piece.path.open("rb") as file:
        low = max(near - TAIL, start)
        file.seek(low)
        tail = file.read(near - low)
        for mark in (b"\n", b" "):
            found = tail.rfind(mark) + 1
            if found:
                return low + found
    return _cut_after(piece, near)


def _cut_after(piece: Slice, near: int) -> int:
    """The end of the first word that ends after `near`; of a word that is too long, the end of a character."""
    with piece.path.open("rb") as file:
        file.seek(near)
        offset = near
        while offset < min(piece.stop, near + LONGEST_WORD) and (block := file.read(min(TAIL, piece.stop - offset))):
            ends = [found for mark in (b"\n", b" ") if (found := block.find(mark) + 1)]
            if ends:
                return offset + min(ends)
            offset += len(block)
    return character_end(piece.path, offset, piece.stop)


def character_end(path: Path, offset: int, stop: int) -> int:
    """The first offset from `offset` on that is not inside a UTF-8 character."""
    with path.open("rb") as file:
        file.seek(offset)
        while offset < stop and (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:
            offset += 1
    return offset


def between_characters(slices: Iterable[Slice]) -> tuple[Slice, ...]:
    """The same slices with every end that falls inside a UTF-8 character moved behind it."""
    moved = []
    for piece in slices:
        size = piece.path.stat().st_size
        moved.append(
            Slice(piece.path, character_end(piece.path, piece.start, size), character_end(piece.path, piece.stop, size))
        )
    return tuple(moved)


@dataclass(frozen=True)
class Part:
    """The bytes of one slice; `open_end` says that its file ends here, in a line without a line end."""

    piece: Slice
    data: bytes
    open_end: bool


def read(chunk: Chunk) -> list[Part]:
    """The bytes of a chunk, file by file."""
    parts = []
    for piece in chunk:
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            data = file.read(piece.size)
            ends = not file.read(1)
        parts.append(Part(piece, data, ends and not data.endswith((b"\n", b"\r"))))
    return parts
