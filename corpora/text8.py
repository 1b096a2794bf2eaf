"""text8: 10^8 characters of English Wikipedia, cleaned to a-z and single spaces.

Source      http://mattmahoney.net/dc/textdata.html (Matt Mahoney); mirror: text8.gz of gensim-data, the same text
Licence     GFDL / CC BY-SA (Wikipedia)
Unit        character; metric bits per character
Splits      90,000,000 / 5,000,000 / 5,000,000 characters in file order, cut without stripping;
            of a prefix of n characters n // 20 each for valid and test
Symbols     27, ids by frequency over all splits; the text begins with a space; a file with any other is rejected
Digests     md5 of the unpacked file as public projects pin it; sha256 and size of the archive likewise;
            md5 and size of the mirror's file as gensim-data publishes them
"""

from pathlib import Path

from .corpus import ReadOptions, Text, VocabularyRule, from_card
from .locate import read_prefix

SYMBOLS = b" abcdefghijklmnopqrstuvwxyz"


def read(source: Path, options: ReadOptions) -> Text:
    """Return the three splits of text8 or of a prefix of it."""
    return read_prefix(source, "text8", SYMBOLS, "but text8 has a to z and spaces only")


CORPUS = from_card("text8", read, VocabularyRule())
