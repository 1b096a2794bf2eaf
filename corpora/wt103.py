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

from .corpus import SPLITS, Corpus, Download, ReadOptions, Rows, Text, VocabularyRule
from .english import join_english
from .locate import read_files

FILES = {split: f"wiki.{split}.tokens" for split in SPLITS}
BLANK = b" \n"
MIRROR = "https://huggingface.co/datasets/Salesforce/wikitext/resolve/b08601e04326c79dfdd32d625aee71d232d685c3"
"""Address of one revision, so that the files stay the same."""


def _mirrored(split: str, name: str, size: int, sha256: str | None = None) -> Download:
    digest = f"sha256:{sha256}" if sha256 else None
    return Download(name, (f"{MIRROR}/wikitext-103-v1/{name}",), size, digest, rows=Rows(FILES[split], BLANK))


def read(source: Path, options: ReadOptions) -> Text:
    """Return the splits of WikiText-103 in `source`."""
    return read_files(source, FILES, "wt103")


def detokenize(text: str) -> str:
    """Undo the corpus's `@-@`, `@,@`, `@.@` and the spaces around punctuation."""
    return join_english(re.sub(r" @([-,.])@ ", r"\1", text))


CORPUS = Corpus(
    name="wt103",
    title="WikiText-103, 103 M words of Wikipedia articles",
    licence="CC BY-SA 3.0",
    unit="word",
    read=read,
    rule=VocabularyRule(splits=("train",), specials=("<eos>",), boundary="<eos>", unknown="<unk>"),
    conventions={
        "line end": "<eos>, after blank lines too",
        "case": "kept",
        "vocabulary": "words of train by frequency",
    },
    downloads=(
        Download(
            "wikitext-103-v1.zip",
            (
                "https://wikitext.smerity.com/wikitext-103-v1.zip",
                "https://s3.amazonaws.com/research.metamind.io/wikitext/wikitext-103-v1.zip",
            ),
            digest="sha256:242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
            mirror=(
                _mirrored("train", "train-00000-of-00002.parquet", 155_788_327),
                _mirrored(
                    "train",
                    "train-00001-of-00002.parquet",
                    155_928_670,
                    "720f2503551f33c25bb822aad74d699fee4d5331a7373d0c262f1bfb01354fcf",
                ),
                _mirrored("valid", "validation-00000-of-00001.parquet", 655_106),
                _mirrored(
                    "test",
                    "test-00000-of-00001.parquet",
                    721_735,
                    "abdfc9f83b1103b502924072460d4c92f277c9b49c313cef3e48cfcf7428e125",
                ),
            ),
        ),
    ),
    wanted=r"wiki\.(train|valid|test)\.tokens",
    digests={
        "wiki.train.tokens": "sha1:b7497e2dfe77e72cfef5e3dbc61b7b53712ac211",
        "wiki.valid.tokens": "sha1:c326ac59dc587676d58c422eb8a03e119582f92b",
        "wiki.test.tokens": "sha1:8a5befc548865cec54ed4273cf87dbbad60d1e47",
    },
    published={"train": 103_227_021, "valid": 217_646, "test": 245_569, "types": 267_735},
    detokenize=detokenize,
)
