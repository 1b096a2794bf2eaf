"""text8: 10^8 characters of English Wikipedia, cleaned to a-z and single spaces."""

from pathlib import Path

from .corpus import ReadOptions, Text, from_card
from .locate import read_prefix

SYMBOLS = b" abcdefghijklmnopqrstuvwxyz"


def read(source: Path, options: ReadOptions) -> Text:
    """Return the three splits of text8 or of a prefix of it."""
    return read_prefix(source, "text8", SYMBOLS, "but text8 has a to z and spaces only")


CORPUS = from_card("text8", read)
