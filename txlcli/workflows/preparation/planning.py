"""Checks the options of `txl prepare` and turns them into a plan."""

import re
import sysconfig
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli import corpora
from txlcli.config.recipe import packaged_names
from txlcli.config.settings import plain_name
from txlcli.corpora.corpus import Corpus, CorpusError
from txlcli.corpora.locate import text_files
from txlcli.data.token_store import FORMAT, StoreFacts
from txlcli.data.vocabulary import TokenizerName, Vocab, unit_of
from txlcli.errors import CorpusInputError, StoreError, UnknownNameError, UsageError, VocabularyError
from txlcli.paper.metrics import metric_of
from txlcli.system.input_files import check_regular
from txlcli.system.written_files import check_replaceable
from txlcli.workflows.exchange import containers, piece_files, token_files, vocabularies
from txlcli.workflows.exchange.piece_files import PieceFiles
from txlcli.workflows.exchange.text_rows import TextFile
from txlcli.workflows.exchange.token_files import FAIRSEQ, FAIRSEQ_OLD, IdType, TokenFiles
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.reporter import Reporter

CHUNK = 2 << 20
"""Bytes of text that are read at once; the other sizes are multiples of it."""
DEFAULT_VOCAB_SIZE = 8000  # of SentencePiece models


@dataclass(frozen=True, kw_only=True)
class PreparationPlan:
    """A preparation whose options have been checked."""

    corpus: Corpus
    source: Path | None
    """File, directory or archive to read; None if the corpus is downloaded."""
    store: Path
    tokenizer: TokenizerName
    options: PrepareOptions
    vocab: Vocab | None
    """An existing vocabulary; None if it is built from the text."""
    vocab_file: Path | None
    """File of the existing vocabulary."""
    tokens: TokenFiles | PieceFiles | None
    """Token files, whose ids are kept; None for text."""
    id_type: IdType
    """Facts from the user and from a vocabulary about ids without a header."""
    files: tuple[TextFile, ...]
    """Files whose text must be extracted: rows, compressed files, other encodings; empty for plain text."""
    chunk: int
    """Bytes of text that are read at once."""
    reporter: Reporter

    @property
    def own_convention(self) -> bool:
        """True if the benchmark's own tokenizer and vocabulary are used."""
        return self.tokenizer == self.corpus.unit

    @property
    def description(self) -> str:
        """The text or the ids, and where they come from, in words."""
        what = f"{self.corpus.title} ({self.tokenizer})"
        if self.tokens is not None:
            what = f"token ids of {self.tokens.format}"
        if self.source is None:
            return f"{what}, downloaded to {self.downloads} and kept there"
        return f"{what}, from {self.source}"

    @property
    def downloads(self) -> Path:
        """Directory that keeps the original files."""
        return self.store.parent / "downloads" / self.corpus.name

    def facts(self, changes: dict[str, int], **facts: Any) -> StoreFacts:
        """Return the facts about the store: those of the plan, and `facts`, which follow from the text."""
        return StoreFacts(
            name=self.store.stem,
            corpus=self.corpus.name,
            tokenizer=self.tokenizer,
            unit=unit_of(self.tokenizer),
            metric=metric_of(self.tokenizer),
            changes={name: count for name, count in changes.items() if count},
            **facts,
        )

    def check_free(self) -> None:
        """Reject an existing store that may not be overwritten."""
        if self.store.exists() and not self.options.force:
            raise StoreError(f"{self.store} exists already; add `force` to overwrite it, or give another `name`")
        check_replaceable(self.store, FORMAT)


def make_plan(
    corpus_or_path: str,
    options: PrepareOptions,
    data_dir: Path,
    *,
    reporter: Reporter | None = None,
    chunk: int = CHUNK,
) -> PreparationPlan:
    """Fill in what the corpus decides, and reject options that have no effect on it."""
    corpus, source = _find_source(corpus_or_path, options)
    vocab = _given_vocabulary(corpus, source, options)
    vocab_file = options.vocab
    id_type = IdType(options.dtype, vocab.size if vocab else options.vocab_size)
    tokens = None
    files: tuple[TextFile, ...] = ()
    if corpus is corpora.OWN_TEXT and source is not None:
        exported = _exported_vocabulary(source, options)
        if exported is not None:
            id_type = IdType(options.dtype, exported.size, is_export=True)
        tokens, files = _find_files(source, options, id_type)
        if vocab is not None and vocab_file is not None and tokens is not None:
            vocab = _numbered_as(tokens.format, vocab, vocab_file)
        # Ids, and rows that are the pieces of a text, are of the vocabulary next to them; other text is not.
        has_pieces = bool(files) and all(file.is_pieces for file in files)
        if exported is not None and (tokens is not None or has_pieces):
            vocab = exported
            vocab_file = _vocabulary_file(source)
    tokenizer = _tokenizer(options, corpus, vocab, has_ids=tokens is not None)
    plan = PreparationPlan(
        corpus=corpus,
        source=source,
        store=data_dir / f"{_store_name(options, corpus, source, tokenizer, vocab)}.h5",
        tokenizer=tokenizer,
        options=options,
        vocab=vocab,
        vocab_file=vocab_file,
        tokens=tokens,
        id_type=id_type,
        files=files,
        chunk=chunk,
        reporter=reporter or Reporter(),
    )
    _check(plan)
    return plan


def _tokenizer(options: PrepareOptions, corpus: Corpus, vocab: Vocab | None, *, has_ids: bool) -> TokenizerName:
    """Return the tokenizer of an existing vocabulary, or else of ids, of the options or of the corpus."""
    if vocab is not None:
        return vocab.tokenizer
    if has_ids:
        return "ids"
    return options.tokenizer or corpus.unit


def _check(plan: PreparationPlan) -> None:
    """Reject a store that cannot be written, options without effect, and a vocabulary that would be read as text."""
    directory = plan.store.parent
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"`data_dir` {directory} is a file; give a folder")
    _reject_name_of_recipe(plan.store.stem)
    _reject_unused(plan)
    _reject_vocabulary_in_text(plan)
    plan.check_free()


def _find_files(
    source: Path, options: PrepareOptions, id_type: IdType
) -> tuple[TokenFiles | PieceFiles | None, tuple[TextFile, ...]]:
    """Return the token files at the path of the user's own text, or the files whose text must be extracted."""
    try:
        tokens: TokenFiles | PieceFiles | None = None
        if options.ids:
            tokens = piece_files.find(source) or token_files.find(source, id_type)
            if tokens is None:
                raise CorpusInputError(f"{source}: no token ids; give files that end with .npy, .npz, .json or .bin")
        elif options.tokenizer is None:
            tokens = token_files.find(source, id_type)
        if tokens is not None:
            return tokens, ()
        return None, containers.find(source, options.column, options.encoding)
    except CorpusError as error:
        raise CorpusInputError(str(error)) from error


def _given_vocabulary(corpus: Corpus, source: Path | None, options: PrepareOptions) -> Vocab | None:
    """Return the vocabulary of `vocab`, each line of a list being an id if the source is token ids."""
    if options.vocab is None:
        return None
    if options.ids or (corpus is corpora.OWN_TEXT and source is not None and _has_ids(source)):
        return vocabularies.read_for_ids(options.vocab)
    return vocabularies.read(options.vocab)


def _numbered_as(format_: str, vocab: Vocab, path: Path) -> Vocab:
    """Return a vocabulary with the symbols that a format has before a list of words; names in JSON have their ids."""
    if format_ not in (FAIRSEQ, FAIRSEQ_OLD) or path.suffix == ".json":
        return vocab
    return vocabularies.of_fairseq(vocab, has_unused_id=format_ == FAIRSEQ_OLD)


def _has_ids(source: Path) -> bool:
    try:
        return token_files.has_ids(source)
    except CorpusError as error:
        raise CorpusInputError(str(error)) from error


def _vocabulary_file(source: Path) -> Path:
    """Return the path of the vocabulary that txl exports with files."""
    directory = source if source.is_dir() else source.parent
    return directory / token_files.VOCABULARY


def _find_source(corpus_or_path: str, options: PrepareOptions) -> tuple[Corpus, Path | None]:
    """Return the corpus of that name and its source, or the user's own text at that path."""
    if corpus_or_path not in corpora.CORPORA:
        return corpora.OWN_TEXT, _own_source(corpus_or_path, options)
    corpus = corpora.CORPORA[corpus_or_path]
    source = options.source
    if source is None and corpus.home:
        return corpus, Path(sysconfig.get_path(corpus.home))
    if source is None:
        return corpus, None
    if not source.exists():
        raise CorpusInputError(
            f"no file or folder at {source}; give `source` an archive, folder or file of {corpus_or_path}"
        )
    return corpus, check_regular(source)


def _own_source(corpus_or_path: str, options: PrepareOptions) -> Path:
    """Return the path of the user's own text."""
    if not corpus_or_path:
        raise UsageError("the name of the corpus, or the path, is empty; give one")
    path = Path(corpus_or_path)
    if not path.exists():
        if path.is_symlink() or re.search(r"[/\\.]", corpus_or_path):
            raise UsageError(f"no file or folder at {path}; give the path of a file or folder with your text")
        raise UnknownNameError("corpus or path", corpus_or_path, corpora.CORPORA)
    if options.source is not None:
        raise UsageError(
            f'`source` needs the name of a corpus, and "{corpus_or_path}" is not one; prepare the path without it'
        )
    return check_regular(path)


def _exported_vocabulary(source: Path, options: PrepareOptions) -> Vocab | None:
    """Return the vocabulary next to the files, unless the user describes another.

    Without `ids`, it is one that txl exported, and files of that name of other systems are not read.
    """
    file = _vocabulary_file(source)
    if options.given("vocab", "tokenizer", "vocab_size", "min_count", "sp_type") or not file.is_file():
        return None
    try:
        return vocabularies.read_for_ids(file) if options.ids else vocabularies.read(file)
    except VocabularyError as error:
        if options.ids:
            raise
        if vocabularies.is_foreign(file) or not _has_ids(source):
            return None
        raise VocabularyError(
            f"{file}: damaged, or of a newer txl; export the ids again, or give `vocab_size` to read them without text"
        ) from error


def _reject_name_of_recipe(store: str) -> None:
    """Reject the name of a recipe, which `txl train` would read; that of a benchmark has the store of that name."""
    is_benchmark = store.removesuffix("-released") in corpora.CORPORA
    if store in packaged_names() and not is_benchmark:
        raise UsageError(
            f'"{store}" is the name of a recipe, so "txl train {store}" would train another text; choose another '
            "name with `name`"
        )


def _reject_unused(plan: PreparationPlan) -> None:
    """Reject options that would have no effect, and a vocabulary that encodes no text."""
    options = plan.options
    corpus = plan.corpus
    tokens = plan.tokens
    rows = [file for file in plan.files if file.column]
    built = None  # tokenizer of a vocabulary that is built
    if not tokens and not plan.own_convention:
        built = plan.tokenizer
    has_header = tokens is None or tokens.format != token_files.WITHOUT_HEADER
    has_splits = bool(corpus.files or corpus.symbols)
    if tokens:
        has_splits = "" not in tokens.splits
    is_own_text = corpus is corpora.OWN_TEXT and not tokens
    has_released_convention = bool(corpus.released_conventions) and not built
    has_size = tokens is not None or built in ("word", "sentencepiece")
    for name, has_effect, purpose in (
        ("ids", bool(tokens), "files or a folder of your own"),
        ("dtype", not has_header, "a .bin of ids without a header, without `tokenizer`"),
        ("column", bool(rows), "files that end with .parquet, .arrow, .jsonl, .json, .csv or .tsv"),
        ("documents", not tokens, "text, not for token ids"),
        ("encoding", is_own_text, "own text"),
        ("split", not has_splits, "text or a file of ids without splits of its own"),
        ("workers", not tokens, "text, not for token ids"),
        ("released_convention", has_released_convention, "enwik8 and lm1b with their own tokenizer"),
        ("vocab_size", has_size, "token ids, and words or SentencePiece of a text"),
        ("min_count", built in ("word", "char"), "a vocabulary of words or characters that is built from the text"),
        ("sp_type", built == "sentencepiece", "`tokenizer` sentencepiece"),
    ):
        if options.given(name) and not has_effect:
            raise UsageError(f"`{name}` has no effect here; it is for {purpose}")
    if options.documents == "records" and all(file.is_pieces for file in rows):
        raise UsageError("`documents` records: the text has no records; give files or blank-lines")
    if plan.tokenizer == "ids" and not tokens:
        raise UsageError(f"`vocab` {options.vocab}: its ids have no symbols, so it encodes no text; give another file")


def _reject_vocabulary_in_text(plan: PreparationPlan) -> None:
    """Reject a vocabulary that is a file of the text."""
    vocab = plan.options.vocab
    if vocab is None or plan.source is None or plan.corpus is not corpora.OWN_TEXT or plan.tokens:
        return
    read = [file.path for file in plan.files] or text_files(plan.source)
    if vocab.resolve() in {path.resolve() for path in read}:
        raise UsageError(f"`vocab` {vocab} would be read as text, too; move it out of {plan.source}")


def _store_name(
    options: PrepareOptions, corpus: Corpus, source: Path | None, tokenizer: TokenizerName, vocab: Vocab | None
) -> str:
    if options.name is not None:
        return options.name
    ending = ""
    if options.vocab and vocab:
        ending = f"-vocab-{vocab.fingerprint[:8]}"
    if corpus is corpora.OWN_TEXT and source is not None:
        plain = plain_name(source.resolve(), otherwise="text")
        if plain.removesuffix("-released") in corpora.CORPORA:
            raise UsageError(f'"{plain}" is the name of a benchmark\'s own store; choose another with `name`')
        return plain + ending
    return corpus.name + (ending or _convention_ending(options, corpus, tokenizer))


def _convention_ending(options: PrepareOptions, corpus: Corpus, tokenizer: TokenizerName) -> str:
    """Return the end of the name of a store whose vocabulary is not given."""
    if tokenizer == "sentencepiece":
        model = "bpe" if options.sp_type == "bpe" else "sp"
        return f"-{model}{options.vocab_size or DEFAULT_VOCAB_SIZE}"
    if tokenizer != corpus.unit:
        return f"-{tokenizer}"
    return "-released" if options.released_convention else ""
