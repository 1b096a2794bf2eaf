"""One Billion Word benchmark: shuffled sentences of news, each on its own."""

import re
from pathlib import Path

from .corpus import SPLITS, CorpusError, ReadOptions, Text, from_card
from .english import join_english
from .locate import missing_note, text_files, whole

VOCABULARY_FILE = "1b_word_vocab.txt"
TRAIN = r"news\.en-\d{5}-of-\d{5}"
HELDOUT = {"valid": "news.en.heldout-00001-of-00050", "test": "news.en.heldout-00000-of-00050"}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits in `source`, found by the names of the shards."""
    files = {path.name: path for path in text_files(source)}
    vocabulary = files.get(VOCABULARY_FILE, source.with_name(VOCABULARY_FILE))
    shards = {split: [HELDOUT["test" if options.released else split]] for split in HELDOUT}
    shards["train"] = sorted(name for name in files if re.fullmatch(TRAIN, name))
    splits = {
        split: tuple(piece for name in shards[split] for piece in whole(files[name]))
        for split in SPLITS
        if files.keys() & shards[split]
    }
    if not splits:
        raise CorpusError(f"{source}: found no file of lm1b; expected names such as {HELDOUT['test']}")
    return Text(splits, missing_note(splits), vocabulary_file=vocabulary if vocabulary.is_file() else None)


CORPUS = from_card("lm1b", read, detokenize=join_english)
