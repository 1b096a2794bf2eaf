"""Checks the options of `txl prepare` and turns them into a plan."""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import corpora
from txlcli.config.settings import PLAIN_NAME, plain_name
from txlcli.corpora.corpus import Corpus, ReadOptions
from txlcli.corpora.locate import text_files
from txlcli.data.vocabulary import MAX_IDS, TokenizerName, Vocab
from txlcli.errors import CorpusInputError, StoreError, UnknownNameError, UsageError, VocabularyError
from txlcli.exchange import token_files, vocabularies
from txlcli.exchange.token_files import TokenFiles
from txlcli.suggestions import meant_name
from txlcli.system.input_files import check_regular
from txlcli.workflows.preparation.workers import default_workers

if TYPE_CHECKING:
    from txlcli.exchange.parquet_text import ParquetText

DEFAULT_VOCAB_SIZE = 8000  # of SentencePiece models
PARQUET = ".parquet"


@dataclass(frozen=True)
class PrepareOptions:
    """Options of the user; None means that the corpus decides."""

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
    dtype: str | None = None
    """Type of the ids in a token file without a header."""
    column: str | None = None
    """Column of Parquet files that has the text."""


@dataclass(frozen=True)
class Plan:
    """A preparation whose options have been checked."""

    corpus: Corpus
    source: Path | None
    """The file, directory or archive to read; None if the corpus is downloaded."""
    store: Path
    tokenizer: TokenizerName
    own_convention: bool
    """True if the benchmark's own tokenizer and vocabulary are used."""
    vocab_size: int | None
    min_count: int
    bpe: bool
    read: ReadOptions
    workers: int
    force: bool
    """True if an existing store may be replaced."""
    vocab: Vocab | None = None
    """An existing vocabulary; None if it is built from the text."""
    vocab_file: Path | None = None
    """File of that vocabulary."""
    is_vocab_beside: bool = False
    """True if that file lies beside the source, and was not named."""
    tokens: TokenFiles | None = None
    """Token files, whose ids are kept; None for text."""
    parquet: "tuple[ParquetText, ...]" = ()
    """Parquet files that have the text in a column; empty for text files."""

    def check_free(self, other: str = "another --name") -> None:
        """Refuse to replace an existing store without --force; `other` is the option that avoids it.

        Raises:
            StoreError: the store exists.
        """
        if self.store.exists() and not self.force:
            raise StoreError(f"{self.store} exists already; add --force to overwrite it, or give {other}")

    @property
    def downloads(self) -> Path:
        """Directory that keeps the original files."""
        return self.store.parent / "downloads" / self.corpus.name


def make_plan(corpus_or_path: str, data_dir: Path, options: PrepareOptions, *, force: bool = False) -> Plan:
    """Check the options and fill in what the corpus decides.

    Raises:
        UsageError: an unknown corpus, or an option that is wrong or has no effect.
        CorpusInputError: the source does not exist.
        StoreError: the store exists and `force` is not set.
    """
    corpus, source = _find_source(corpus_or_path, options)
    tokens = _find_tokens(corpus, source, options)
    parquet = () if tokens or corpus is not corpora.OWN_TEXT else _find_parquet(source, options)
    if options.column is not None and not parquet:
        raise UsageError(f"--column has no effect here; it is for files that end with {PARQUET}")
    vocab_file = options.vocab or _vocabulary_beside(source, options, tokens, parquet)
    vocab = _given_vocabulary(options, vocab_file)
    tokenizer: TokenizerName = options.tokenizer or (vocab.tokenizer if vocab else "ids" if tokens else corpus.unit)
    if tokens is not None:
        _refuse_unused_with_ids(options, tokens)
    else:
        _refuse_unused(options, corpus, tokenizer)
    vocab_size = options.vocab_size
    if tokenizer == "sentencepiece" and not vocab_size:
        vocab_size = DEFAULT_VOCAB_SIZE
    bpe = options.sp_type == "bpe"
    if data_dir.exists() and not data_dir.is_dir():
        raise UsageError(f"--data-dir {data_dir} is a file; give a folder")
    suffix = f"-vocab-{vocab.fingerprint[:8]}" if options.vocab and vocab else ""
    suffix = suffix or ("" if tokens else _suffix(options, corpus, tokenizer, vocab_size))
    store = data_dir / f"{_store_name(options, corpus, source, suffix)}.h5"
    plan = Plan(
        corpus=corpus,
        source=source,
        store=store,
        tokenizer=tokenizer,
        own_convention=tokenizer == corpus.unit,
        vocab_size=_at_least(2, "--vocab-size", vocab_size),
        min_count=_at_least(1, "--min-count", options.min_count) or 1,
        bpe=bpe,
        read=ReadOptions(released=options.released_convention, shares=_parse_shares(options.split)),
        workers=_at_least(1, "--workers", options.workers) or default_workers(),
        force=force,
        vocab=vocab,
        vocab_file=vocab_file,
        is_vocab_beside=options.vocab is None and vocab_file is not None,
        tokens=tokens,
        parquet=parquet,
    )
    plan.check_free(other=f"--name {store.stem}-{tokenizer}" if options.name is None else "another --name")
    return plan


def _find_tokens(corpus: Corpus, source: Path | None, options: PrepareOptions) -> TokenFiles | None:
    """Return the token files of the user's own; None if the source is read as text.

    Raises:
        CorpusInputError: a token file is damaged.
        UsageError: the type of ids is given for a text.
    """
    tokens = None
    if corpus is corpora.OWN_TEXT and source is not None and options.tokenizer is None:
        tokens = token_files.find(source, options.dtype)
    if options.dtype is not None and tokens is None:
        other = ", without --tokenizer" if options.tokenizer else ""
        raise UsageError(f"--dtype has no effect here; it is for a .bin of ids without a header{other}")
    if options.dtype is not None and tokens is not None and tokens.format != token_files.WITHOUT_HEADER:
        raise UsageError(
            f"--dtype has no effect here: files of {tokens.format} state the type of their ids; leave it out"
        )
    return tokens


def _find_parquet(source: Path | None, options: PrepareOptions) -> "tuple[ParquetText, ...]":
    """Return the Parquet files of the user's own, in the order of their names; empty if there are none.

    Raises:
        CorpusInputError: a file is damaged, or it is not known which column is the text.
    """
    files = [] if source is None else text_files(source) if source.is_dir() else [source]
    files = [path for path in files if path.suffix.lower() == PARQUET]
    if not files:
        return ()
    from txlcli.exchange import parquet_text

    return tuple(parquet_text.open_text(path, options.column) for path in files)


def _vocabulary_beside(
    source: Path | None, options: PrepareOptions, tokens: TokenFiles | None, parquet: "tuple[ParquetText, ...]"
) -> Path | None:
    """Return the vocabulary that txl exported with the files, unless the user describes another."""
    described = (options.tokenizer, options.vocab_size, options.min_count, options.sp_type)
    is_exported = tokens is not None or (parquet and all(text.is_pieces for text in parquet))
    if source is None or not is_exported or any(option is not None for option in described):
        return None
    path = (source if source.is_dir() else source.parent) / token_files.VOCABULARY
    return path if path.is_file() else None


def _refuse_unused_with_ids(options: PrepareOptions, tokens: TokenFiles) -> None:
    """Refuse options that would have no effect on ids."""
    values = {
        "--min-count": options.min_count,
        "--sp-type": options.sp_type,
        "--released-convention": options.released_convention or None,
        "--workers": options.workers,
        "--split": options.split if "" not in tokens.splits else None,
    }
    unused = next((option for option, value in values.items() if value is not None), None)
    if unused == "--split":
        raise UsageError("--split has no effect here: the names of the token files state the splits; leave it out")
    if unused is not None:
        raise UsageError(f"{unused} has no effect here: the ids of a token file are kept; leave it out")
    if options.vocab_size is not None and options.vocab_size > MAX_IDS:
        raise UsageError(f"--vocab-size {options.vocab_size} is too large for ids; give at most {MAX_IDS}")


def _given_vocabulary(options: PrepareOptions, file: Path | None) -> Vocab | None:
    """Read the vocabulary file; one that the user named replaces all options that describe a vocabulary."""
    if file is None:
        return None
    values = {
        "--tokenizer": options.tokenizer,
        "--vocab-size": options.vocab_size,
        "--min-count": options.min_count,
        "--sp-type": options.sp_type,
        "--released-convention": options.released_convention or None,
    }
    unused = [option for option, value in values.items() if value is not None]
    if unused:
        raise UsageError(f"{unused[0]} has no effect with --vocab, whose file includes it; leave it out")
    try:
        return vocabularies.read(file)
    except VocabularyError as error:
        if options.vocab is not None:
            raise
        raise VocabularyError(
            f"{file}: lies beside the files, but is not a vocabulary of txl; move it away, or give --vocab or "
            "--vocab-size"
        ) from error


def _find_source(corpus_or_path: str, options: PrepareOptions) -> tuple[Corpus, Path | None]:
    """Return the corpus of that name and its source, or the user's own text at that path."""
    source = options.source
    if corpus_or_path not in corpora.CORPORA:
        path = Path(corpus_or_path)
        if not path.exists():
            raise _unknown_source(corpus_or_path)
        if source is not None:
            raise UsageError(
                f'--source needs the name of a corpus, and "{corpus_or_path}" is not one; prepare the path without it'
            )
        return corpora.OWN_TEXT, check_regular(path)
    corpus = corpora.CORPORA[corpus_or_path]
    if source is not None and not source.exists():
        raise CorpusInputError(
            f"no file or folder at {source}; give --source an archive, folder or file of {corpus_or_path}"
        )
    return corpus, check_regular(source) if source else (corpus.home() if corpus.home else None)


def _unknown_source(word: str) -> UsageError:
    """Return the error for a word that is neither a corpus nor a path: a word like a path is compared with paths."""
    path = Path(word)
    if path.is_symlink():
        return UsageError(f"{path}: a link to a file that does not exist; give the path of a file or folder")
    names = [entry.name for entry in path.parent.iterdir()] if os.access(path.parent, os.R_OK) else []
    near = meant_name(path.name, names)
    if re.search(r"[/\\.]", word):
        hint = f'did you mean "{path.with_name(near)}"?' if near else "give the path of a file or folder with your text"
        return UsageError(f"no file or folder at {word}; {hint}")
    if near and not meant_name(word, corpora.CORPORA):
        return UsageError(f'no corpus, file or folder "{word}"; did you mean "{near}"?')
    return UnknownNameError("corpus or path", word, corpora.CORPORA)


def _refuse_unused(options: PrepareOptions, corpus: Corpus, tokenizer: TokenizerName) -> None:
    """Refuse options that would have no effect, and a vocabulary that encodes no text."""
    if tokenizer == "ids":
        raise UsageError(f"--vocab {options.vocab}: its ids have no symbols, so it encodes no text; give another file")
    own = tokenizer == corpus.unit
    reason = f"the {tokenizer} vocabulary of {corpus.name} is fixed" if own else f"--tokenizer is {tokenizer}"
    if options.vocab_size is not None and (own or tokenizer not in ("word", "sentencepiece")):
        raise UsageError(
            f"--vocab-size has no effect here ({reason}); it is for --tokenizer word and --tokenizer sentencepiece"
        )
    if options.min_count is not None and (own or tokenizer not in ("word", "char")):
        raise UsageError(f"--min-count has no effect here ({reason}); it is for --tokenizer word and --tokenizer char")
    if options.sp_type is not None and tokenizer != "sentencepiece":
        raise UsageError(f"--sp-type has no effect with --tokenizer {tokenizer}; it is for --tokenizer sentencepiece")
    if options.split is not None and not corpus.splittable:
        raise UsageError(f"--split has no effect here: the splits of {corpus.name} are fixed; leave it out")
    if options.released_convention and not (corpus.released_conventions and own):
        known = ", ".join(name for name, other in corpora.CORPORA.items() if other.released_conventions)
        raise UsageError(f"--released-convention has no effect here; it is for {known} with their own tokenizer")


def _suffix(options: PrepareOptions, corpus: Corpus, tokenizer: TokenizerName, vocab_size: int | None) -> str:
    if tokenizer == "sentencepiece":
        return f"-{'bpe' if options.sp_type == 'bpe' else 'sp'}{vocab_size}"
    if options.released_convention:
        return "-released"
    return "" if tokenizer == corpus.unit else f"-{tokenizer}"


def _store_name(options: PrepareOptions, corpus: Corpus, source: Path | None, suffix: str) -> str:
    if options.name is not None:
        if not re.fullmatch(PLAIN_NAME, options.name):
            raise UsageError(f'--name "{options.name}" is no plain name; use letters, digits, ".", "-" and "_"')
        return options.name
    if corpus is not corpora.OWN_TEXT or source is None:
        return corpus.name + suffix
    plain = plain_name(source.resolve(), otherwise="text")
    if plain.removesuffix("-released") in corpora.CORPORA:
        raise UsageError(f'"{plain}" is the name of a benchmark\'s own store; choose another with --name')
    return plain + (suffix if options.vocab is not None else "")


def _at_least(least: int, option: str, value: int | None) -> int | None:
    if value is not None and value < least:
        raise UsageError(f"{option} {value} is too small; give at least {least}")
    return value


def _parse_shares(text: str | None) -> tuple[float, float, float] | None:
    """Parse shares of train, valid and test in percent, such as "90,5,5"."""
    if text is None:
        return None
    try:
        train, valid, test = (float(part) for part in text.split(","))
    except ValueError:
        train = valid = test = -1.0
    if not (train > 0 and min(valid, test) >= 0 and abs(train + valid + test - 100) < 1e-6):
        raise UsageError(f'--split "{text}" is not three shares of train, valid and test that sum to 100; try 90,5,5')
    return train, valid, test
