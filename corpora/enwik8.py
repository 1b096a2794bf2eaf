"""enwik8: the first 10^8 bytes of the English Wikipedia dump of 3 March 2006, as XML.

Source      http://mattmahoney.net/dc/textdata.html (Matt Mahoney, Large Text Compression Benchmark);
            mirror: data.deepai.org, the same archive
Licence     GFDL / CC BY-SA (Wikipedia)
Unit        byte; metric bits per character, which is bits per byte here
Splits      90,000,000 / 5,000,000 / 5,000,000 bytes in file order; of a prefix of n bytes n // 20 each for valid, test
Symbols     205 distinct bytes, ids by frequency over all splits
Released    the released code drops every newline byte after the cut: 204 symbols, numbers not comparable
            (--released-convention)
Digests     md5 of the unpacked file by the benchmark's page; sha256 and size of the archive as public projects pin them
"""

from pathlib import Path

from .corpus import ReadOptions, Text, VocabularyRule, from_card
from .locate import read_prefix

BYTES = bytes({9, 10, *range(0x20, 0xC0), *range(0xC2, 0xF5)})
"""Bytes that the dump may have: UTF-8 without control characters but tab and line end."""


def read(source: Path, options: ReadOptions) -> Text:
    """Return the three splits of enwik8 or of a prefix of it."""
    return read_prefix(source, "enwik8", BYTES, "which enwik8 does not have")


CORPUS = from_card("enwik8", read, VocabularyRule(), released_rule=VocabularyRule(dropped=b"\n"))
