"""Penn Treebank, as preprocessed by Mikolov: newspaper sentences, 10,000 types, numbers as N."""

from pathlib import Path

from .corpus import SPLITS, ReadOptions, Text, from_card
from .english import join_english
from .locate import read_files

FILES = {split: f"ptb.{split}.txt" for split in SPLITS}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of Penn Treebank in `source`."""
    return read_files(source, FILES, "ptb")


CORPUS = from_card("ptb", read, detokenize=join_english)
