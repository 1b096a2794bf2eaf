"""Finds where the documents of a text begin: at files, at records, or after blank lines."""

import codecs
import re
from array import array
from collections.abc import Callable, Iterator
from pathlib import Path

from .corpus import Slice

Starts = Callable[[Path], "array[int]"]
"""Returns the offsets of the documents of a file, in bytes, in order."""
BLANK_LINES = re.compile(rb"\n(?:[ \t\r]*\n)+")
BLOCK = 1 << 22  # bytes


def text_of(path: Path) -> Slice:
    """Return a file without its byte order mark."""
    with path.open("rb") as file:
        has_mark = file.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return Slice(path, len(codecs.BOM_UTF8) if has_mark else 0, path.stat().st_size)


def document_starts(unit: str, records: dict[Path, "array[int]"], *, block: int = BLOCK) -> Starts:
    """Return the function that finds documents, which are "files", "records" or divided by "blank-lines".

    The text is searched in blocks of this size.
    """
    found = records if unit == "records" else {}

    def starts(path: Path) -> "array[int]":
        if path not in found:
            after = _after_blank_lines(text_of(path), block) if unit == "blank-lines" else ()
            found[path] = array("q", [text_of(path).start, *after])
        return found[path]

    return starts


def _after_blank_lines(text: Slice, size: int) -> Iterator[int]:
    """Yield the offset after each run of blank lines that text precedes and follows."""
    rest, done = b"", text.start
    for block in text.blocks(size):
        data = rest + block
        kept = len(data.rstrip(b" \t\r\n"))  # a run of blank lines may continue in the next block
        for match in BLANK_LINES.finditer(data, 0, kept):
            if done + match.start() > text.start:
                yield done + match.end()
        rest, done = data[kept:], done + kept
