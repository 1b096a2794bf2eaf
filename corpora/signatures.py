"""Recognizes files that are not UTF-8 text by their first bytes: archives, rows, other formats and other encodings."""

import codecs
import functools
import tomllib
import zlib
from pathlib import Path
from typing import Any

from .corpus import CorpusError

GROUPS = ("packed", "rows", "other")
HEAD = 4096  # bytes
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks of other encodings; that of UTF-16 is the beginning of one of UTF-32."""
ENCODINGS = {"utf-8": 0.2, **dict.fromkeys(("utf-32-le", "utf-32-be", "utf-16-le", "utf-16-be"), 0.01)}
"""Encodings without a mark that are tried in turn, and the largest share of characters that cannot be printed."""


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("signatures.toml").read_text(encoding="utf-8"))


@functools.cache
def _signatures(group: str) -> tuple[tuple[str, bytes, int], ...]:
    """Return the name, the bytes and their offset of each signature of a group."""
    parts = ((name, mark.partition("@")) for name, row in _table()[group].items() for mark in row["bytes"])
    return tuple((name, bytes.fromhex(mark), int(offset or 0)) for name, (mark, _, offset) in parts)


def format_of(path: Path, *groups: str) -> str | None:
    """Return the format of a file, by default that of an archive or compressed file; None if it is another file."""
    if not path.is_file():
        return None
    groups = groups or ("packed",)
    rows = (item for group in groups for item in _table()[group].items())
    by_name = (name for name, row in rows if path.suffix.lower() in row.get("endings", ()))
    return next(by_name, None) or format_in(head_of(path), *groups)


def format_in(head: bytes, *groups: str) -> str | None:
    """Return the format of a group that a file with these first bytes has; None if it has none of them."""
    if "packed" in groups and _is_zlib(head):
        return "zlib"
    return next((name for group in groups for name, mark, at in _signatures(group) if head.startswith(mark, at)), None)


def head_of(path: Path) -> bytes:
    """Return the first bytes of a file."""
    with path.open("rb") as file:
        return file.read(HEAD)


def _is_zlib(head: bytes) -> bool:
    """True for a stream of zlib, whose two first bytes may also begin a text."""
    try:
        return head[:1] == b"x" and bool(zlib.decompressobj().decompress(head))
    except zlib.error:
        return False


def encoding_of(head: bytes) -> str | None:
    """Return the name of UTF-16 or UTF-32 if the first bytes of a text are in it; None for all other bytes."""
    marked = next((name for mark, name in MARKS.items() if head.startswith(mark)), None)
    if marked or 0 not in head:
        return marked
    head = head[: len(head) // 4 * 4]
    found = next((name for name, most in ENCODINGS.items() if _unprintable(head, name) <= most), None)
    return None if found == "utf-8" else found


def _unprintable(head: bytes, encoding: str) -> float:
    """Return the share of characters that text in an encoding does not have; 1 without blanks, or if not UTF-8."""
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    if {" ", "\n", "\r"}.isdisjoint(text) or (encoding == "utf-8" and REPLACEMENT in text):
        return 1.0
    return sum(not (symbol.isprintable() or symbol.isspace()) or symbol == REPLACEMENT for symbol in text) / len(text)


def reject_other_than_text(*paths: Path, is_utf8: bool = True) -> None:
    """Reject files of another format, including txl's own files, and of another encoding unless `is_utf8` is False."""
    table = _table()
    for path in paths:
        if name := format_of(path, *GROUPS):
            group = next(group for group in GROUPS if name in table[group])
            way = table[group][name].get("way", "name a file of text")
            raise CorpusError(f"{path}: {table['errors'][group].format(name=name, way=way)}")
        if is_utf8 and path.is_file() and (encoding := encoding_of(head_of(path))):
            raise CorpusError(f"{path}: {encoding} is not UTF-8; give `encoding` {encoding}, or {conversion(encoding)}")


def conversion(encoding: str) -> str:
    """Return the advice to convert a text, with the name that iconv has for an encoding: UTF-16LE."""
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    return f"convert it: iconv -f {name} -t UTF-8 FILE > NEW"
