"""Finds where the documents of a text begin: at files, at records, or after blank lines."""

import bisect
import codecs
import itertools
import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from .corpus import Slice, Slices

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
                self.offsets[piece.path] = self._offsets_in(text_of(piece.path))
            offsets = self.offsets[piece.path]
            first = bisect.bisect_left(offsets, piece.start)
            end = bisect.bisect_left(offsets, piece.stop)
            starts.extend(done + offset - piece.start for offset in offsets[first:end])
            done += piece.size
        return starts

    def _offsets_in(self, text: Slice) -> "array[int]":
        """Return where the documents of a file begin, unless they are known."""
        offsets = array("q", [text.start])
        if self.unit == "blank-lines":
            offsets.extend(_after_blank_lines(text, self.block))
        elif self.unit not in UNITS:
            offsets.extend(_after_marks(text, self.unit.encode(), self.block))
        return offsets


def divide(data: bytes, unit: str) -> list[bytes]:
    """Return the documents of a text: those between blank lines, or those up to each mark."""
    with TemporaryDirectory(prefix="txl-") as directory:
        path = Path(directory, "text")
        path.write_bytes(data)
        text = text_of(path)
        starts = [text.start + start for start in Documents(unit).starts([text])]
    return [data[start:end] for start, end in itertools.pairwise([*starts, len(data)])]


def _after_blank_lines(text: Slice, size: int) -> Iterator[int]:
    """Yield the offset after each run of blank lines that text precedes and follows."""
    rest = b""
    done = text.start
    for block in text.blocks(size):
        data = rest + block
        kept = len(data.rstrip(b" \t\r\n"))  # a run of blank lines may continue in the next block
        for match in BLANK_LINES.finditer(data, 0, kept):
            if done + match.start() > text.start:
                yield done + match.end()
        rest = data[kept:]
        done += kept


def _after_marks(text: Slice, mark: bytes, size: int) -> Iterator[int]:
    """Yield the offset after each mark, and the line ends that follow it, unless the text ends there."""
    pattern = re.compile(re.escape(mark) + rb"[\r\n]*")
    rest = b""
    done = text.start
    for block in text.blocks(size):
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
