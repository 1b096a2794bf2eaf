"""Recognizes files that are not UTF-8 text by their first bytes: archives, rows, other formats and other encodings."""

import codecs
import functools
import itertools
import sys
import tomllib
import zlib
from array import array
from pathlib import Path
from typing import Any

from .corpus import CorpusError

GROUPS = ("packed", "rows", "other")
HEAD = 4096  # bytes
CHUNK = "a chunk of streaming samples"
"""Format that is recognized by its table of offsets."""
PYTORCH = "a file of torch.save"
"""Format that is recognized by a name in its archive."""
OF_IDS = {CHUNK, "a NumPy array", "packed token ids of LitGPT"}
"""Formats of token ids, which a README or an index.json may describe."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
MARKS = {
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks of other encodings; that of UTF-16 is the beginning of one of UTF-32."""
MAX_UNPRINTABLE = {"utf-8": 0.2, "utf-32-le": 0.01, "utf-32-be": 0.01, "utf-16-le": 0.01, "utf-16-be": 0.01}
"""Encodings without a mark that are tried in turn, and the largest share of characters that cannot be printed."""


@functools.cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads(Path(__file__).with_name("signatures.toml").read_text(encoding="utf-8"))


@functools.cache
def _signatures(group: str) -> tuple[tuple[str, bytes, int], ...]:
    """Return the name, the bytes and their offset of each signature of a group."""
    signatures = []
    for name, row in _table()[group].items():
        for signature in row["bytes"]:
            mark, _, offset = signature.partition("@")
            signatures.append((name, bytes.fromhex(mark), int(offset or 0)))
    return tuple(signatures)


def format_of(path: Path, *groups: str) -> str | None:
    """Return the format of a file, by default that of an archive or compressed file; None if it is another file."""
    if not path.is_file():
        return None
    groups = groups or ("packed",)
    for group in groups:
        for name, row in _table()[group].items():
            if path.suffix.lower() in row.get("endings", ()):
                return name
    found = format_in(head_of(path), *groups)
    if found is None and "other" in groups and has_offsets(path):
        return CHUNK
    return found


def format_in(head: bytes, *groups: str) -> str | None:
    """Return the format of a group that a file with these first bytes has; None if it has none of them."""
    if "packed" in groups and _is_zlib(head):
        return "zlib"
    if "other" in groups and head.startswith(b"PK") and b"/data.pkl" in head:
        return PYTORCH
    for group in groups:
        for name, mark, offset in _signatures(group):
            if head.startswith(mark, offset):
                return name
    return None


def format_of_header(path: Path) -> str | None:
    """Return the format of a file that may be numbers alone: one whose signature no small numbers have."""
    head = head_of(path)
    for group in GROUPS:
        for name, mark, offset in _signatures(group):
            is_telling = len(mark) >= 4 and not set(mark) <= {0, 1, 0xFF}
            if is_telling and offset == 0 and head.startswith(mark):
                return name
    return CHUNK if has_offsets(path) else None


def has_offsets(path: Path) -> bool:
    """True for a chunk of streaming samples: their number, and the offset of each up to the end of the file."""
    size = path.stat().st_size
    with path.open("rb") as file:
        count = int.from_bytes(file.read(4), "little")
        end = 4 * (count + 2)
        if count == 0 or end > size:
            return False
        offsets = array("I", file.read(end - 4))
    if sys.byteorder == "big":
        offsets.byteswap()
    is_table = len(offsets) == count + 1 and end <= offsets[0] and offsets[-1] == size
    return is_table and all(first <= second for first, second in itertools.pairwise(offsets))


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
    for mark, name in MARKS.items():
        if head.startswith(mark):
            return name
    if 0 not in head:
        return None
    head = head[: len(head) // 4 * 4]
    for name, largest in MAX_UNPRINTABLE.items():
        if _unprintable(head, name) <= largest:
            return None if name == "utf-8" else name
    return None


def _unprintable(head: bytes, encoding: str) -> float:
    """Return the share of characters that text in an encoding does not have; 1 without blanks, or if not UTF-8."""
    text = codecs.getincrementaldecoder(encoding)("replace").decode(head)
    if {" ", "\n", "\r"}.isdisjoint(text) or (encoding == "utf-8" and REPLACEMENT in text):
        return 1.0
    printable = sum(symbol.isprintable() or symbol.isspace() for symbol in text)
    return (len(text) - printable + text.count(REPLACEMENT)) / len(text)


def reject_other_than_text(*paths: Path, is_utf8: bool = True) -> None:
    """Reject files of another format, including txl's own files, and of another encoding unless `is_utf8` is False."""
    table = _table()
    for path in paths:
        name = format_of(path, *GROUPS)
        if name is not None:
            group = next(group for group in GROUPS if name in table[group])
            way = table[group][name].get("way", "name a file of text")
            raise CorpusError(f"{path}: {table['errors'][group].format(name=name, way=way)}")
        if not is_utf8 or not path.is_file():
            continue
        encoding = encoding_of(head_of(path))
        if encoding is not None:
            raise CorpusError(f"{path}: {encoding} is not UTF-8; give `encoding` {encoding}, or {conversion(encoding)}")


def conversion(encoding: str) -> str:
    """Return the advice to convert a text, with the name that iconv has for an encoding: UTF-16LE."""
    name = encoding.upper().replace("-LE", "LE").replace("-BE", "BE")
    return f"convert it: iconv -f {name} -t UTF-8 FILE > NEW"
