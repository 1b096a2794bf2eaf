"""WikiText-103: verified good and featured articles of the English Wikipedia, tokenized.

Source      https://wikitext.smerity.com (an author's copy; the first host, an S3 bucket, refuses downloads since 2024);
            mirror: the configuration wikitext-103-v1 of Salesforce/wikitext on the Hugging Face Hub, Parquet files
            with one row per line (1,801,350 / 3,760 / 4,358); blank lines, which have one space, are empty rows
Licence     CC BY-SA 3.0
Unit        word, case kept, <eos> after every line, blank lines included; metric perplexity
Splits      103,227,021 / 217,646 / 245,569 tokens with <eos>
Symbols     267,735: <eos> (id 0), then the words of train (<unk> is one of them) by frequency
Digests     sha256 of the archive and sha1 of the files inside, as several public projects pin them;
            no published size of the archive is used; sizes of the mirror's files as users report them, and sha256
            of two as the host lists them; the files made of their rows are verified by the sha1 above
"""

import re
from pathlib import Path

from .corpus import SPLITS, ReadOptions, Text, VocabularyRule, from_card
from .english import join_english
from .locate import read_files

FILES = {split: f"wiki.{split}.tokens" for split in SPLITS}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of WikiText-103 in `source`."""
    return read_files(source, FILES, "wt103")


def detokenize(text: str) -> str:
    """Undo the corpus's `@-@`, `@,@`, `@.@` and the spaces around punctuation."""
    return join_english(re.sub(r" @([-,.])@ ", r"\1", text))


CORPUS = from_card(
    "wt103",
    read,
    VocabularyRule(splits=("train",), specials=("<eos>",), boundary="<eos>", unknown="<unk>"),
    detokenize=detokenize,
)
