"""Texts that are scored: a split of the run's store, or a text of the user's."""

import codecs
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txlcli.config import recipe
from txlcli.core.reading.documents import document_spans
from txlcli.core.reading.scoring import scored_stream
from txlcli.corpora import CORPORA
from txlcli.corpora.locate import printable
from txlcli.corpora.signatures import HEAD, conversion, encoding_of
from txlcli.data.token_store import TokenStore, corpus_name, prepare_command
from txlcli.data.vocabulary import Vocab, count_words
from txlcli.errors import StoreError, VocabularyError
from txlcli.runs.loading import OpenModel, OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.user_text import ReadText, UserText
from txlcli.workflows.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """Text to score: inputs and targets (T,), and the original text that the targets stand for."""

    title: str
    inputs: NDArray[np.integer]
    targets: NDArray[np.integer]
    data: bytes = b""
    """A user's text, which was encoded; empty for a split."""
    words: int | None
    """Number of original words, with line ends counted as in the benchmark; None if unknown."""
    size: int | None
    """Number of original bytes; None unless all bytes of the text are scored."""
    unit: str
    conventions: dict[str, str]
    paper: float | None = None
    """Result of the paper for the run's recipe on this split, in the corpus's metric."""
    corpus: str | None = None
    """Corpus of the store; None for a user's text."""
    split: str | None = None
    """Split that this is all or the beginning of; None for a user's text."""
    notes: tuple[str, ...] = ()
    """Remarks on text that may not be what it seems."""
    whole: bool = True
    """True if every token that can be predicted is scored."""
    digest: str | None = None
    """SHA-256 of the split; None for a user's text."""
    may_be_trained_on: bool | None = None
    """True if the split may contain training data of the run; None if unknown."""


def read_text(opened: OpenModel, options: EvalOptions, workspace: Workspace) -> ScoredText:
    """Return the user's text that the options name, or a split of the run's store."""
    if options.text is not None:
        read = options.text.read(column=options.column, encoding=options.encoding)
        return encode_text(opened, read, options.positions, workspace.reporter, source=options.text)
    return split_text(opened.as_run, options.split or "test", options.positions, workspace)


def split_text(opened: OpenRun, split: str, positions: int | None, workspace: Workspace) -> ScoredText:
    """Return a split of the run's store, or its first positions; warn if it may contain training data."""
    store = opened.store(workspace.data_dir)
    if split not in store.splits:
        raise StoreError(
            f"{store.path} has no {split} split (it holds {', '.join(store.splits)}); give `split` "
            f'{list(store.splits)[-1]}, or run "{prepare_command(store.name, force=True)}" with a source that has it'
        )
    warn_if_trained_on(opened, split, workspace)
    return first_positions(opened, split, positions, workspace)


def warn_if_trained_on(opened: OpenRun, split: str, workspace: Workspace) -> None:
    """Warn if a split of the run's store may contain text that the run was trained on."""
    store = opened.store(workspace.data_dir)
    if opened.trained_on_another(store):
        workspace.reporter.say(
            f"{store.path} was prepared again: its train split is not the one {opened.run.directory} was trained on, "
            f"and its {split} split may contain training data of that run"
        )


def first_positions(opened: OpenRun, split: str, positions: int | None, workspace: Workspace) -> ScoredText:
    """Return the first positions of a split of the run's store, or all of them."""
    store = opened.store(workspace.data_dir)
    ids = store.ids(split)
    inputs, targets = scored_stream(ids, store.vocab.boundary, positions)
    if not len(targets):
        raise StoreError(f"{store.path}: the {split} split has no token to predict; prepare a longer text")
    info = store.info(split)
    whole = len(targets) == _predictable(len(ids), store.vocab)
    words = None
    if whole and info.words:
        words = _scored_words(info.words, store.vocab)
    size = None
    if store.every_byte_scored and not info.unknown:
        if store.unit == "byte":
            size = len(targets)
        elif len(targets) == info.tokens:  # the first token is scored as well, and all are in the vocabulary
            size = info.bytes
    return ScoredText(
        title=f"{store.name} {split}",
        inputs=inputs,
        targets=targets,
        words=words,
        size=size,
        unit=store.unit,
        conventions=store.conventions,
        paper=_published(opened.run, store, split) if whole else None,
        corpus=store.corpus,
        split=split,
        whole=whole,
        digest=store.digest(split),
        may_be_trained_on=split == "train" or opened.trained_on_another(store),
    )


def spans_of_documents(opened: OpenRun, text: ScoredText, workspace: Workspace) -> list[tuple[int, int]]:
    """Return the targets of each document of a split, as `document_spans` does."""
    store = opened.store(workspace.data_dir)
    starts = store.sentence_starts(text.split or "")
    if starts is None:
        raise StoreError(f"{store.path} does not record where documents begin; prepare it again with `documents`")
    return document_spans(starts, store.vocab.boundary, len(text.targets))


def _predictable(tokens: int, vocab: Vocab) -> int:
    """Return how many of the tokens of a text can be predicted: without a boundary, nothing precedes the first."""
    return tokens - 1 if vocab.boundary is None else tokens


def _scored_words(words: int, vocab: Vocab) -> int:
    """Return the number of scored words of a text; without a boundary, nothing predicts a first word."""
    if vocab.tokenizer == "word" and vocab.boundary is None:
        return words - 1
    return words


def _published(run: Run, store: TokenStore, split: str) -> float | None:
    """Return the paper's result if both the model and the corpus are the paper's."""
    published = run.settings.published
    same_model = (run.vocab_size, run.parameters) == (published.vocab_size, published.parameters)
    if not same_model or run.recipe_name not in recipe.packaged_names():
        return None
    _, text = recipe.packaged(run.recipe_name)
    own = recipe.resolve_text(text, run.recipe_name).corpus.store
    if store.corpus != own:
        return None
    return getattr(published, split, None)


def encode_text(
    opened: OpenModel, read: ReadText, positions: int | None, reporter: Reporter, *, source: UserText
) -> ScoredText:
    """Encode a user's text, or its first positions; `source` is where it was read from."""
    vocab = opened.vocab
    data = _as_prepared(read.data, source, vocab)
    vocab.check_has_text()
    try:
        ids = vocab.encode(data)
    except VocabularyError as error:
        raise VocabularyError(f"{source.label}: {error}") from error
    words = _count_words(data, len(ids), opened)
    inputs, targets = scored_stream(ids, vocab.boundary, positions)
    if not len(targets):
        raise VocabularyError(f"{source.label}: no token to predict; give a longer text")
    unknown = 0
    if vocab.unknown is not None:
        unknown = int((targets == vocab.unknown).sum())
    notes = list(read.notes)
    if unknown:
        remark = f"{unknown:,} of {len(targets):,} tokens are not in the vocabulary and are read as <unk>"
        reporter.say(remark)
        if 2 * unknown > len(targets):
            notes.append(remark)
    whole = len(targets) == _predictable(len(ids), vocab)
    size = None
    if vocab.tokenizer == "byte" and not vocab.dropped:
        size = len(targets)
    elif vocab.unit == "piece" and vocab.boundary is not None and whole and not unknown:
        size = len(data)
    return ScoredText(
        title=printable(source.title),
        inputs=inputs,
        targets=targets,
        data=data,
        words=_scored_words(words, vocab) if whole else None,
        size=size,
        unit=vocab.unit,
        conventions={},
        whole=whole,
        notes=tuple(notes),
    )


def _count_words(data: bytes, tokens: int, opened: OpenModel) -> int:
    """Return the number of words of a user's text, and of its line ends if the corpus of a run counts them."""
    vocab = opened.vocab
    words, lines = count_words(data, tokens, vocab.tokenizer, has_boundary=vocab.boundary is not None)
    corpus = CORPORA.get(corpus_name(opened.settings.corpus.store))
    if vocab.keeps_line_ends and (corpus is None or corpus.counts_line_ends):
        words += lines
    return words


def _as_prepared(data: bytes, source: UserText, vocab: Vocab) -> bytes:
    """Return a user's text with the end that `txl prepare` gives a split; reject another encoding."""
    data = data.removeprefix(codecs.BOM_UTF8)
    encoding = encoding_of(data[:HEAD])
    if encoding:
        raise VocabularyError(f"{source.label}: {encoding} is not UTF-8; {conversion(encoding)}")
    if vocab.tokenizer == "char" and vocab.unknown is None and "\n" not in vocab.ids_of:
        return data.removesuffix(b"\n").removesuffix(b"\r")  # added by editors; text8 has no line ends
    has_text = bool(data) and not data.isspace()
    if vocab.tokenizer == "word" and has_text and not data.endswith((b"\n", b"\r")):
        return data + b"\n"
    return data
