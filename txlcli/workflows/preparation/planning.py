"""Turns the wishes of `txl prepare` into a plan that can be carried out."""

import re
from dataclasses import dataclass
from pathlib import Path

import corpora
from corpora.corpus import Corpus, ReadOptions
from txlcli.config.settings import PLAIN_NAME
from txlcli.data.vocabulary import TokenizerName, Vocab
from txlcli.errors import CorpusInputError, StoreError, UnknownNameError, UsageError
from txlcli.exchange import vocabularies
from txlcli.workflows.preparation.workers import default_workers

PIECES = 8000  # SentencePiece's size where none is asked for
SHARES_SUM = 100.0


@dataclass(frozen=True)
class PrepareOptions:
    """What the user asked for; None means that the corpus decides."""

    source: Path | None = None
    name: str | None = None
    tokenizer: TokenizerName | None = None
    vocab_size: int | None = None
    min_count: int | None = None
    sp_type: str | None = None
    split: str | None = None
    released_convention: bool = False
    vocab: Path | None = None
    workers: int | None = None


@dataclass(frozen=True)
class Plan:
    """What is to be prepared, checked: every wish can be honoured."""

    corpus: Corpus
    source: Path | None
    """The file, folder or archive to read; None means that it is downloaded."""
    store: Path
    kind: TokenizerName
    own: bool
    """Whether the benchmark's own convention holds."""
    vocab_size: int | None
    min_count: int
    bpe: bool
    read: ReadOptions
    workers: int
    vocab: Vocab | None = None
    """A vocabulary that is there already; None means that the text gives it."""

    @property
    def downloads(self) -> Path:
        """Where original files are kept."""
        return self.store.parent / "downloads" / self.corpus.name


def make_plan(what: str, data_dir: Path, wishes: PrepareOptions, *, force: bool = False) -> Plan:
    """Check the wishes and fill in what the corpus decides.

    Raises:
        UsageError: an unknown corpus, or an option that is wrong or would do nothing.
        CorpusInputError: the source is not there.
        StoreError: the store exists and `force` is not given.
    """
    corpus, source = _find(what, wishes)
    vocab = _given_vocabulary(wishes)
    kind: TokenizerName = wishes.tokenizer or (vocab.tokenizer if vocab else corpus.unit)
    own = kind == corpus.unit
    _refuse_idle(wishes, corpus, kind, own)
    pieces = (wishes.vocab_size or PIECES) if kind == "sentencepiece" else wishes.vocab_size
    bpe = wishes.sp_type == "bpe"
    if data_dir.exists() and not data_dir.is_dir():
        raise UsageError(f"--data-dir {data_dir} is a file; give a folder")
    suffix = f"-vocab-{vocab.fingerprint[:8]}" if vocab else _suffix(wishes, kind, own, pieces, bpe)
    store = data_dir / f"{_store_name(wishes, corpus, source, suffix)}.h5"
    if store.exists() and not force:
        raise StoreError(f"{store} exists already; add --force to overwrite it, or give another --name")
    return Plan(
        corpus=corpus,
        source=source,
        store=store,
        kind=kind,
        own=own,
        vocab_size=_at_least(2, "--vocab-size", pieces),
        min_count=_at_least(1, "--min-count", wishes.min_count) or 1,
        bpe=bpe,
        read=ReadOptions(released=wishes.released_convention, shares=_shares(wishes.split)),
        workers=_at_least(1, "--workers", wishes.workers) or default_workers(),
        vocab=vocab,
    )


def _given_vocabulary(wishes: PrepareOptions) -> Vocab | None:
    """The vocabulary of a file that the user names, which settles everything that would build one."""
    if wishes.vocab is None:
        return None
    options = {
        "--tokenizer": wishes.tokenizer,
        "--vocab-size": wishes.vocab_size,
        "--min-count": wishes.min_count,
        "--sp-type": wishes.sp_type,
        "--released-convention": wishes.released_convention or None,
    }
    idle = [option for option, value in options.items() if value is not None]
    if idle:
        raise UsageError(f"{idle[0]} does nothing with --vocab, which brings all of that along; leave it out")
    return vocabularies.read(wishes.vocab)


def _find(what: str, wishes: PrepareOptions) -> tuple[Corpus, Path | None]:
    """The corpus of that name and its source, or the own text at that path."""
    source = wishes.source
    if what not in corpora.CORPORA:
        if not Path(what).exists():
            raise UnknownNameError("corpus or path", what, corpora.CORPORA)
        if source is not None:
            raise UsageError(f'--source goes with a corpus, and "{what}" is none; prepare the path alone')
        if not (Path(what).is_file() or Path(what).is_dir()):
            raise CorpusInputError(f"{what} is no regular file or folder; save its text to a file first")
        return corpora.OWN_TEXT, Path(what)
    corpus = corpora.CORPORA[what]
    if source is not None and not source.exists():
        raise CorpusInputError(f"no file or folder at {source}; give --source an archive, folder or file of {what}")
    return corpus, source or (corpus.home() if corpus.home else None)


def _refuse_idle(wishes: PrepareOptions, corpus: Corpus, kind: TokenizerName, own: bool) -> None:
    """Refuse options that would change nothing."""
    fixed = f"the {kind} vocabulary of {corpus.name} is fixed" if own else f"--tokenizer is {kind}"
    if wishes.vocab_size is not None and (own or kind not in ("word", "sentencepiece")):
        raise UsageError(f"--vocab-size does nothing here ({fixed}); it goes with --tokenizer word or sentencepiece")
    if wishes.min_count is not None and (own or kind not in ("word", "char")):
        raise UsageError(f"--min-count does nothing here ({fixed}); it goes with --tokenizer word or char")
    if wishes.sp_type is not None and kind != "sentencepiece":
        raise UsageError(f"--sp-type does nothing with --tokenizer {kind}; it goes with --tokenizer sentencepiece")
    if wishes.split is not None and not corpus.splittable:
        raise UsageError(f"--split does nothing here: the splits of {corpus.name} are fixed; leave it out")
    if wishes.released_convention and not (corpus.released_conventions and own):
        known = ", ".join(name for name, one in corpora.CORPORA.items() if one.released_conventions)
        raise UsageError(f"--released-convention does nothing here; it goes with {known} and their own tokenizer")


def _suffix(wishes: PrepareOptions, kind: TokenizerName, own: bool, pieces: int | None, bpe: bool) -> str:
    if kind == "sentencepiece":
        return f"-{'bpe' if bpe else 'sp'}{pieces}"
    if wishes.released_convention:
        return "-released"
    return "" if own else f"-{kind}"


def _store_name(wishes: PrepareOptions, corpus: Corpus, source: Path | None, suffix: str) -> str:
    if wishes.name is not None:
        if not re.fullmatch(PLAIN_NAME, wishes.name):
            raise UsageError(f'--name "{wishes.name}" is no plain name; use letters, digits, ".", "-" and "_"')
        return wishes.name
    if corpus is not corpora.OWN_TEXT or source is None:
        return corpus.name + suffix
    path = source.resolve()
    plain = re.sub(r"[^\w.+-]+", "-", path.stem if path.is_file() else path.name).strip("-.")
    if plain.removesuffix("-released") in corpora.CORPORA:
        raise UsageError(
            f'"{plain}" is what a benchmark\'s own store is called; give your text another name with --name'
        )
    return (plain or "text") + (suffix if wishes.vocab is not None else "")


def _at_least(least: int, option: str, value: int | None) -> int | None:
    if value is not None and value < least:
        raise UsageError(f"{option} {value} is too small; give at least {least}")
    return value


def _shares(text: str | None) -> tuple[float, float, float] | None:
    """Shares of train, valid and test in percent from "90,5,5"."""
    if text is None:
        return None
    try:
        train, valid, test = (float(part) for part in text.split(","))
    except ValueError:
        train = valid = test = -1.0
    sound = train > 0 and min(valid, test) >= 0 and abs(train + valid + test - SHARES_SUM) < 1e-6
    if not sound:
        raise UsageError(f'--split "{text}" is not three shares of train, valid and test that sum to 100; try 90,5,5')
    return train, valid, test
