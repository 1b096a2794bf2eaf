"""Texts that are scored: a split of the run's store, or a text of the user's."""

import codecs
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from txlcli.config import recipe
from txlcli.config.settings import EvalSettings
from txlcli.core.reading.scoring import Stream, scored_stream
from txlcli.core.training.distributed import SINGLE_PROCESS, World
from txlcli.corpora.locate import printable
from txlcli.corpora.signatures import HEAD, conversion, encoding_of, format_in
from txlcli.data.token_store import TokenStore, corpus_of, prepare_command
from txlcli.data.vocabulary import Vocab, count_words
from txlcli.errors import StoreError, VocabularyError
from txlcli.runs.loading import OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.user_text import UserText
from txlcli.workflows.workspace import Workspace

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """Text to score: inputs and targets (T,), and the original text that the targets stand for."""

    title: str
    inputs: NDArray[np.integer]
    targets: NDArray[np.integer]
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
    whole: bool = True
    """True if every token that can be predicted is scored."""
    digest: str | None = None
    """SHA-256 of the split; None for a user's text."""
    may_be_trained_on: bool | None = None
    """True if the split may contain training data of the run; None if unknown."""


@dataclass(frozen=True)
class Scoring:
    """A run, and a text that it scores with given settings."""

    opened: OpenRun
    text: ScoredText
    settings: EvalSettings
    workspace: Workspace
    positions: int | None = None
    """Positions of the validation split that a search scores; None is all."""
    world: World = SINGLE_PROCESS
    """Processes that divide the lanes or the windows."""

    @property
    def reporter(self) -> Reporter:
        """Receives messages and progress."""
        return self.workspace.reporter

    def score(self, function: Callable[[Stream], Result], title: str) -> Result:
        """Score the text with a function of the core; `title` names its progress."""
        opened, text = self.opened, self.text
        with (
            self.reporter.progress(title, total=len(text.targets), unit="tokens") as bar,
            opened.model.softmax.at_temperature(float(self.settings.temperature)),  # `with_temperature` has chosen it
        ):
            return function(Stream(opened.model, text.inputs, text.targets, self.settings, bar.reach))

    def on_valid(self, positions: int | None = None) -> "Scoring":
        """Return the first positions of the validation split, scored with the same settings."""
        text = _first_positions(self.opened, "valid", positions or self.positions, self.workspace)
        return replace(self, text=text)

    def changed(self, **settings: Any) -> "Scoring":
        """Return the same text scored with other settings."""
        return replace(self, settings=replace(self.settings, **settings))


def one_lane(run: Run, *, mem_len: int | None, seg_len: int | None = None) -> EvalSettings:
    """Return the run's evaluation settings with one lane, temperature 1, and these lengths if they are given."""
    settings = run.settings
    mem_len = settings.eval.mem_len if mem_len is None else mem_len
    settings.check_memory(mem_len, run=run.directory, instead="give `mem_len` 0")
    seg_len = seg_len or settings.eval.seg_len
    return settings.evaluation_settings(batch_size=1, mem_len=mem_len, seg_len=seg_len, temperature=1.0)


def split_text(opened: OpenRun, split: str, positions: int | None, workspace: Workspace) -> ScoredText:
    """Return a split of the run's store, or its first positions; warn if it may contain training data."""
    store = opened.store(workspace.data_dir)
    if split not in store.splits:
        raise StoreError(
            f"{store.path} has no {split} split (it holds {', '.join(store.splits)}); give `split` "
            f'{list(store.splits)[-1]}, or run "{prepare_command(store.name, force=True)}" with a source that has it'
        )
    warn_if_trained_on(opened, split, workspace)
    return _first_positions(opened, split, positions, workspace)


def warn_if_trained_on(opened: OpenRun, split: str, workspace: Workspace) -> None:
    """Warn if a split of the run's store may contain text that the run was trained on."""
    store = opened.store(workspace.data_dir)
    if opened.trained_on_another(store):
        workspace.reporter.say(
            f"{store.path} was prepared again: its train split is not the one {opened.run.directory} was trained on, "
            f"and its {split} split may contain training data of that run"
        )


def _first_positions(opened: OpenRun, split: str, positions: int | None, workspace: Workspace) -> ScoredText:
    store = opened.store(workspace.data_dir)
    ids = store.ids(split)
    inputs, targets = scored_stream(ids, store.vocab.boundary, positions)
    if not len(targets):
        raise StoreError(f"{store.path}: the {split} split has no token to predict; prepare a longer text")
    count, info = len(targets), store.info(split)
    whole = count == len(ids) - (store.vocab.boundary is None)
    # Bytes of characters and pieces are known if the first token is scored as well, and all are in the vocabulary.
    size = count if store.unit == "byte" else info.bytes if count == info.tokens else None
    return ScoredText(
        title=f"{store.name} {split}",
        inputs=inputs,
        targets=targets,
        words=_scored_words(store.vocab, info.words) if whole and info.words else None,
        size=size if store.every_byte_scored and not info.unknown else None,
        unit=store.unit,
        conventions=store.conventions,
        paper=_published(opened.run, store, split) if whole else None,
        corpus=store.corpus,
        split=split,
        whole=whole,
        digest=store.digest(split),
        may_be_trained_on=split == "train" or opened.trained_on_another(store),
    )


def first_targets(scoring: Scoring) -> list[int]:
    """Return the place of the first target of each document of a split."""
    store, split = scoring.opened.store(scoring.workspace.data_dir), scoring.text.split or ""
    starts = store.sentence_starts(split)
    if starts is None:
        raise StoreError(f"{store.path} does not record where documents begin; prepare it again with `documents`")
    places = np.maximum(starts.astype(np.int64) - (store.vocab.boundary is None), 0)
    return np.unique(places[places < len(scoring.text.targets)]).tolist()


def _scored_words(vocab: Vocab, words: int) -> int:
    """Return the number of scored words of a text; without a boundary, nothing predicts a first word."""
    return words - (vocab.tokenizer == "word" and vocab.boundary is None)


def _published(run: Run, store: TokenStore, split: str) -> float | None:
    """Return the paper's result if both the model and the corpus are the paper's."""
    published = run.settings.published
    same_model = (run.vocab_size, run.parameters) == (published.vocab_size, published.parameters)
    if not same_model or run.recipe_name not in recipe.packaged_names():
        return None
    own = recipe.resolve_text(recipe.packaged(run.recipe_name)[1], run.recipe_name).corpus.store
    return getattr(published, split, None) if store.corpus == own else None


def encode_text(opened: OpenRun, source: UserText, positions: int | None, reporter: Reporter) -> ScoredText:
    """Encode a user's text, or its first positions; a vocabulary of bytes accepts any data."""
    vocab, is_bytes = opened.vocab, opened.vocab.tokenizer == "byte"
    data = _as_prepared(source, vocab, reporter)
    vocab.check_has_text()
    try:
        ids = vocab.encode(data)
    except VocabularyError as error:
        raise VocabularyError(f"{source.label}: {error}") from error
    inputs, targets = scored_stream(ids, vocab.boundary, positions)
    if not len(targets):
        raise VocabularyError(f"{source.label}: no token to predict; give a longer text")
    unknown = 0 if vocab.unknown is None else int((targets == vocab.unknown).sum())
    if unknown:
        reporter.say(f"{unknown:,} of {len(targets):,} tokens are not in the vocabulary and are read as <unk>")
    whole = len(targets) == len(ids) - (vocab.boundary is None)
    corpus = corpus_of(opened.run.settings.corpus.store)
    counts_line_ends = vocab.keeps_line_ends and (corpus is None or corpus.counts_line_ends)
    words, lines = count_words(data, len(ids), vocab.tokenizer, has_boundary=vocab.boundary is not None)
    words += counts_line_ends * lines
    size = len(data) if vocab.tokenizer == "sentencepiece" and whole and not unknown else None
    if is_bytes and not vocab.dropped:
        size = len(targets)
    return ScoredText(
        title=printable(source.name),
        inputs=inputs,
        targets=targets,
        words=_scored_words(vocab, words) if whole else None,
        size=size,
        unit="piece" if vocab.tokenizer == "sentencepiece" else vocab.tokenizer,
        conventions={},
        whole=whole,
    )


def _as_prepared(source: UserText, vocab: Vocab, reporter: Reporter) -> bytes:
    """Return a user's text with the end that `txl prepare` gives a split; reject or note another encoding."""
    data, is_bytes = source.data.removeprefix(codecs.BOM_UTF8), vocab.tokenizer == "byte"
    if (encoding := encoding_of(data[:HEAD])) and not is_bytes:
        raise VocabularyError(f"{source.label}: {encoding} is not UTF-8; {conversion(encoding)}")
    if is_bytes and (found := encoding or format_in(data[:HEAD], "packed", "rows", "other")):
        reporter.say(f"{source.label} seems to be {found}; its bytes are scored as they are")
    if vocab.tokenizer == "char" and vocab.unknown is None and "\n" not in vocab.ids_of:
        return data.removesuffix(b"\n").removesuffix(b"\r")  # added by editors; text8 has no line ends
    if vocab.tokenizer == "word" and data and not (data.isspace() or data.endswith((b"\n", b"\r"))):
        return data + b"\n"
    return data
