"""Options of `txl prepare`, without PyTorch."""

from pathlib import Path
from typing import Literal

from txlcli.config.ranges import AtLeastTwo, NotNegativeFloat, PositiveInt
from txlcli.corpora.corpus import SHARES
from txlcli.errors import UsageError
from txlcli.workflows.options import (
    Options,
    check_documents,
    check_encoding,
    column_option,
    encoding_option,
    flag_option,
    force_option,
    option,
)

IdDtype = Literal["uint8", "uint16", "uint32", "int32", "int64", "uint16-be", "uint32-be", "int32-be", "int64-be"]
"""Types of the ids of a file without a header; -be is big-endian."""


class PrepareOptions(Options):
    """Options of `txl prepare`; None means that the corpus decides."""

    source: Path | None = option("Read the corpus from this archive, folder or file instead of downloading it.")
    name: str | None = option("Name of the store [default: from corpus and tokenizer].")
    tokenizer: Literal["byte", "char", "word", "sentencepiece"] | None = option(
        "How text is split into tokens [default: the corpus's own]."
    )
    vocab_size: AtLeastTwo | None = option(
        "Largest number of words, with the two marks for line ends and unknown words [default: all], or size of the "
        "SentencePiece model [default: 8000]."
    )
    min_count: PositiveInt | None = option("Treat words or characters that are rarer in train as unknown.")
    sp_type: Literal["unigram", "bpe"] | None = option("Type of the SentencePiece model [default: unigram].")
    split: tuple[NotNegativeFloat, ...] | None = option(
        "Shares of train, valid and test in percent [default: 90,5,5].",
        read=lambda text: tuple(map(float, text.split(","))),
        example="three shares like 90,5,5",
    )
    released_convention: bool = flag_option("Treat enwik8 and lm1b like the released code of the paper.")
    vocab: Path | None = option("Encode with this vocabulary, such as the vocab.json of a run.", metavar="FILE")
    workers: PositiveInt | None = option("Processes that read the text [default: one per processor, at most 6].")
    dtype: IdDtype | None = option(
        "Type of the ids of a .bin without a header: uint8, uint16, uint32, int32, int64; big-endian: uint16-be "
        "[default: uint16].",
        metavar="TYPE",
    )
    ids: bool = flag_option(
        "Read token ids, each piece from a file of its own: .npy, .npz, or JSON, such as MidiTok's."
    )
    column: str | None = column_option()
    documents: str | None = option(
        "Store where documents begin, and cut splits between them: files, records, texts between blank lines, or up to "
        "a mark such as '<|endoftext|>'.",
        metavar="files|records|blank-lines|MARK",
    )
    encoding: str | None = encoding_option()
    force: bool = force_option()

    def _check(self) -> None:
        if self.name is not None and self.name.endswith(".h5"):
            name = self.name.removesuffix(".h5")
            raise UsageError(f'`name` {self.name}: txl adds ".h5" to the name of a store; give `name` {name}')
        check_encoding(self.encoding)
        check_documents(self.documents)
        shares = self.split or SHARES
        is_whole = abs(sum(shares) - 100) < 1e-6
        if len(shares) != 3 or shares[0] == 0 or not is_whole:
            raise UsageError("`split`: give three shares of train, valid and test that sum to 100, like 90,5,5")
        if self.ids:
            self.exclude(
                *("tokenizer", "min_count", "sp_type", "column", "documents", "encoding"),
                because="`ids` reads token ids, each piece a document",
            )
        if self.vocab is not None:
            others = ("tokenizer", "vocab_size", "min_count", "sp_type", "released_convention")
            self.exclude(*others, because="the file of `vocab` decides")
