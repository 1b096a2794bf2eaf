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

from .corpus import Corpus, ReadOptions, Text, VocabularyRule, digests_of, downloads_of
from .locate import read_prefix

SYMBOLS = b" abcdefghijklmnopqrstuvwxyz"


def read(source: Path, options: ReadOptions) -> Text:
    """Return the three splits of text8 or of a prefix of it."""
    return read_prefix(source, "text8", SYMBOLS, "but text8 has a to z and spaces only")


CORPUS = Corpus(
    name="text8",
    title="text8, 100 M characters of cleaned English Wikipedia",
    licence="GFDL / CC BY-SA",
    unit="char",
    read=read,
    rule=VocabularyRule(),
    conventions={
        "split": "90/5/5 by position, not stripped",
        "vocabulary": "characters of all splits by frequency",
    },
    downloads=downloads_of("text8"),
    wanted="text8",
    digests=digests_of("text8"),
    published={"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000, "types": 27},
    counts_line_ends=False,
)
