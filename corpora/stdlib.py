"""The source of the running Python's standard library: real text on every machine, no download.

Source      every .py file below the standard library's directory; without site-packages, tests, __pycache__ and tables
            that a program wrote (encodings, pydoc_data, _sysconfigdata)
Licence     PSF License Agreement
Unit        byte, all 256 symbols; metric bits per byte
Splits      files in the order of the sha256 of their relative names, so that all splits have similar text;
            90/5/5 of the bytes, cut at the nearest file boundary (--split changes the shares)
"""

import hashlib
import itertools
from pathlib import Path

from .corpus import SHARES, Corpus, ReadOptions, Text
from .directory import cut, format_shares
from .locate import text_files, whole

SKIPPED = {"site-packages", "dist-packages", "test", "tests", "idle_test", "encodings", "pydoc_data"}
TABLE = "_sysconfigdata"


def read(corpus: Corpus, source: Path, options: ReadOptions) -> Text:
    """Cut between source files, each of which is a document."""
    names = [path.relative_to(source) for path in text_files(source)]
    names = list(filter(_is_source, names))
    names.sort(key=lambda name: hashlib.sha256(name.as_posix().encode()).digest())
    slices = [whole(source / name) for name in names]
    pieces = [piece for piece in slices if piece.size]
    starts = list(itertools.accumulate((piece.size for piece in pieces[:-1]), initial=0))
    shares = options.shares or SHARES
    convention = f"{format_shares(shares)} by whole files, in the order of their names' sha256"
    return Text(cut(pieces, source, shares, starts), conventions={"split": convention})


def _is_source(name: Path) -> bool:
    """True for a module that people wrote, of the library itself."""
    return name.suffix == ".py" and SKIPPED.isdisjoint(name.parts[:-1]) and not name.name.startswith(TABLE)
