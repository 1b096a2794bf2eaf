"""enwik8: the first 10^8 bytes of the English Wikipedia dump of 3 March 2006, as XML."""

from pathlib import Path

from .corpus import ReadOptions, Text, from_card
from .locate import read_prefix

BYTES = bytes({9, 10, *range(0x20, 0xC0), *range(0xC2, 0xF5)})
"""Bytes that the dump may have: UTF-8 without control characters but tab and line end."""


def read(source: Path, options: ReadOptions) -> Text:
    """Return the three splits of enwik8 or of a prefix of it."""
    return read_prefix(source, "enwik8", BYTES, "which enwik8 does not have")


CORPUS = from_card("enwik8", read)
