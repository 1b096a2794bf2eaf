"""Cuts the text of a split, which may lie in many files, into chunks that end between words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from txlcli.corpora.corpus import Slice

CHUNK = 2 << 20  # bytes; the unit of work and of memory
TAIL = 1 << 16  # bytes before the end of a chunk that are searched for a line end
LONGEST_WORD = 64 << 20  # bytes; a longer word is cut between characters

Chunk = tuple[Slice, ...]


def cut_into_chunks(
    slices: Iterable[Slice], size: int = CHUNK, *, tail: int = TAIL, longest_word: int = LONGEST_WORD
) -> Iterator[Chunk]:
    """Yield chunks of about `size` bytes in reading order, cut after a line end, else after a blank, else a character.

    Small files share a chunk. The cuts depend only on the text, so they are the same for any number of workers.
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


def _cut_before(piece: Slice, low: int, high: int) -> int | None:
    """Return the offset after the last line end, else after the last blank, between `low` and `high`."""
    with piece.path.open("rb") as file:
        file.seek(low)
        tail = file.read(high - low)
    for mark in (b"\n", b" "):
        if end := tail.rfind(mark) + 1:
            return low + end
    return None


def _cut_after(piece: Slice, near: int, block_size: int, longest_word: int) -> int:
    """Return the end of the first word that ends after `near`, or the end of a character if that word is too long."""
    with piece.path.open("rb") as file:
        file.seek(near)
        offset = near
        stop = min(piece.stop, near + longest_word)
        while offset < stop and (block := file.read(min(block_size, piece.stop - offset))):
            ends = [end for mark in (b"\n", b" ") if (end := block.find(mark) + 1)]
            if ends:
                return offset + min(ends)
            offset += len(block)
    return _character_end(piece.path, offset, piece.stop)


def _character_end(path: Path, offset: int, stop: int) -> int:
    """Return the first offset, from `offset` on, that is not inside a UTF-8 character."""
    with path.open("rb") as file:
        file.seek(offset)
        while offset < stop and (byte := file.read(1)) and byte[0] & 0xC0 == 0x80:
            offset += 1
    return offset


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


def read_chunk(chunk: Chunk) -> list[Part]:
    """Read the bytes of a chunk, one part per file."""
    parts = []
    for piece in chunk:
        with piece.path.open("rb") as file:
            file.seek(piece.start)
            data = file.read(piece.size)
            at_end = not file.read(1)
        parts.append(Part(piece, data, at_end and not data.endswith((b"\n", b"\r"))))
    return parts
