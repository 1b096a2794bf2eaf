"""Finds where the documents of a text begin: at files, at records, or after blank lines."""

import bisect
import codecs
import itertools
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from .corpus import Slice, Slices, Splits

UNITS = ("files", "records", "blank-lines")
"""Names of what documents can be; any other text is a mark that ends them."""
BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
BLOCK = 1 << 22  # bytes


def text_of(path: Path) -> Slice:
    """Return a file without its byte order mark."""
    with path.open("rb") as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    start = len(codecs.BOM_UTF8) if has_mark else 0
    return Slice(path, start, path.stat().st_size)


@dataclass(frozen=True)
class Documents:
    """The documents of files: each file is one, or its records are, or texts between blank lines or marks."""

    unit: str
    """One of UNITS, or index for documents whose offsets are known, or else the mark that ends each of them."""
    block: int = BLOCK
    """Bytes that are searched at once."""
    offsets: "dict[Path, array[int]]" = field(default_factory=dict)
    """Where the documents of each file begin, in bytes."""

    def starts(self, pieces: Slices) -> "array[int]":
        """Return the offsets in the concatenation of slices at which documents begin."""
        starts = array("q")
        done = 0
        for piece in pieces:
            if piece.path not in self.offsets:
                text = text_of(piece.path)
                later = _later_starts(self.unit, text.blocks(self.block))
                self.offsets[piece.path] = array("q", [text.start])
                self.offsets[piece.path].extend(text.start + start for start in later)
            offsets = self.offsets[piece.path]
            first = bisect.bisect_left(offsets, piece.start)
            end = bisect.bisect_left(offsets, piece.stop)
            starts.extend(done + offset - piece.start for offset in offsets[first:end])
            done += piece.size
        return starts


def documents_at(offsets: "dict[Path, array[int]]", splits: Splits) -> Documents | None:
    """Return the documents that begin at these offsets of files; None if no split has more than one."""
    for pieces in splits.values():
        if sum(len(offsets.get(piece.path, ())) for piece in pieces) > 1:
            return Documents("index", offsets=offsets)
    return None


def note_on_undivided(unit: str, *, files: int, documents: int) -> str | None:
    """Return a note if no mark, or blank line, divides any of the files into documents."""
    if unit in ("files", "records") or documents > files:
        return None
    what = "blank line" if unit == "blank-lines" else f'"{unit}"'
    return f"no {what} divides the text: each file is one document"


def divide(data: bytes, unit: str) -> list[bytes]:
    """Return the documents of a text: those between blank lines, or those up to each mark."""
    text = data.removeprefix(codecs.BOM_UTF8)
    starts = [0, *_later_starts(unit, [text]), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]


def _later_starts(unit: str, blocks: Iterable[bytes]) -> Iterator[int]:
    """Yield the offsets in a text at which its documents begin, but for the first one."""
    if unit == "blank-lines":
        yield from _after_blank_lines(blocks)
    elif unit not in UNITS:
        yield from _after_marks(unit.encode(), blocks)


def _after_blank_lines(blocks: Iterable[bytes]) -> Iterator[int]:
    """Yield the offset after each run of blank lines that text precedes and follows."""
    rest = b""
    done = 0
    text_precedes = False
    for block in blocks:
        data = rest + block
        kept = len(data.rstrip(b" \t\r\n"))  # a run of blank lines may continue in the next block
        for match in BLANK_LINES.finditer(data, 0, kept):
            text_precedes = text_precedes or bool(data[: match.start()].strip())
            if text_precedes:
                yield done + match.end()
        text_precedes = text_precedes or kept > 0
        rest = data[kept:]
        done += kept


def _after_marks(mark: bytes, blocks: Iterable[bytes]) -> Iterator[int]:
    """Yield the offset after each mark, and the line ends that follow it, unless the text ends there."""
    pattern = re.compile(re.escape(mark) + rb"[\r\n]*")
    rest = b""
    done = 0
    for block in blocks:
        data = rest + block
        kept = max(0, len(data) - len(mark) + 1)  # a mark may continue in the next block
        for match in pattern.finditer(data):
            if match.end() == len(data):
                kept = match.start()
                break
            yield done + match.end()
            kept = max(kept, match.end())
        rest = data[kept:]
        done += kept
