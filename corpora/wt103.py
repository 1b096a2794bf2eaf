"""WikiText-103: verified good and featured articles of the English Wikipedia, tokenized."""

import re
from pathlib import Path

from .corpus import SPLITS, ReadOptions, Text, from_card
from .english import join_english
from .locate import read_files

FILES = {split: f"wiki.{split}.tokens" for split in SPLITS}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of WikiText-103 in `source`."""
    return read_files(source, FILES, "wt103")


def detokenize(text: str) -> str:
    """Undo the corpus's `@-@`, `@,@`, `@.@` and the spaces around punctuation."""
    return join_english(re.sub(r" @([-,.])@ ", r"\1", text))


CORPUS = from_card("wt103", read, detokenize=detokenize)
