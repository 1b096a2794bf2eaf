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

from .corpus import Corpus, Download, ReadOptions, Text, VocabularyRule
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
    downloads=(
        Download(
            "text8.zip",
            ("http://mattmahoney.net/dc/text8.zip", "https://mattmahoney.net/dc/text8.zip"),
            size=31_344_016,
            digest="sha256:a6640522afe85d1963ad56c05b0ede0a0c000dddc9671758a6cc09b7a38e5232",
            mirror=(
                Download(
                    "text8.gz",
                    (
                        "https://github.com/piskvorky/gensim-data/releases/download/text8/text8.gz",
                        "https://github.com/RaRe-Technologies/gensim-data/releases/download/text8/text8.gz",
                    ),
                    size=33_182_058,
                    digest="md5:68799af40b6bda07dfa47a32612e5364",
                ),
            ),
        ),
    ),
    wanted="text8",
    digests={"text8": "md5:3bea1919949baf155f99411df5fada7e"},
    published={"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000, "types": 27},
    counts_line_ends=False,
)
