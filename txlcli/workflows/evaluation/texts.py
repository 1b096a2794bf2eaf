"""What `txl eval` scores: a split of the run's store, or any text."""

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from corpora.locate import printable
from txlcli import console
from txlcli.config import recipe
from txlcli.errors import StoreError, UsageError, VocabularyError
from txlcli.options import read_stdin
from txlcli.paper import metrics

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from txlcli.data.token_store import TokenStore
    from txlcli.runs.loading import OpenRun
    from txlcli.runs.run_folder import Run


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScoredText:
    """What is scored: inputs and targets (T,), and what the targets stand for."""

    title: str
    inputs: "NDArray[np.integer]"
    targets: "NDArray[np.integer]"
    scored: metrics.Scored
    unit: str
    conventions: dict[str, str]
    paper: float | None = None
    """What the paper reports for the run's recipe on this split, in the corpus's metric."""
    corpus: str | None = None
    """The corpus of the store; None for a text of the user's own."""
    split: str | None = None
    """The split that it is, or the head of; None for a text of the user's own."""
    whole: bool = True
    """Whether all that can be predicted is."""
    digest: str | None = None
    """What tells the split from others; None for a text of the user's own."""
    may_be_learned: bool | None = None
    """Whether the split may hold text that the run was trained on; None where nobody knows."""


def of_split(opened: "OpenRun", split: str, positions: int | None, data_dir: Path) -> ScoredText:
    """A split of the run's store, or its first positions; says where the run may have learned it.

    Raises:
        StoreError: the store or the split is missing, or there is nothing to predict.
        VocabularyError: the store has another vocabulary than the run.
    """
    store = opened.store(data_dir)
    tell_learned(opened, store, split)
    return _head(opened, store, split, positions)


def tell_learned(opened: "OpenRun", store: "TokenStore", split: str) -> None:
    """Say where a split may hold text that the run was trained on."""
    if opened.trained_on_another(store):
        console.say(
            f"{store.path} has another train split than {opened.run.folder} was trained on: it was prepared again, and "
            f"its {split} split may hold text that the run has learned"
        )


def to_search_on(opened: "OpenRun", positions: int | None, data_dir: Path) -> ScoredText:
    """The valid split, or its first positions, which settle what is then applied to the text that is scored.

    Raises:
        StoreError: the store or the split is missing, or there is nothing to predict.
        VocabularyError: the store has another vocabulary than the run.
    """
    return _head(opened, opened.store(data_dir), "valid", positions)


def _head(opened: "OpenRun", store: "TokenStore", split: str, positions: int | None) -> ScoredText:
    from txlcli.core.training.segments import scored_stream

    ids = store.ids(split)
    inputs, targets = scored_stream(ids, store.vocab.boundary, positions)
    if not len(targets):
        raise StoreError(f"{store.path}: the {split} split has no token to predict; prepare a longer text")
    scored = _scored(store, split, len(targets))
    paper = _published(opened.run, store, split)
    predictable = len(ids) - 1 if store.vocab.boundary is None else len(ids)
    return ScoredText(
        title=f"{store.name} {split}",
        inputs=inputs,
        targets=targets,
        scored=scored,
        unit=store.unit,
        conventions=store.conventions,
        paper=paper,
        corpus=store.corpus,
        split=split,
        whole=len(targets) == predictable,
        digest=store.digest(split),
        may_be_learned=split == "train" or opened.trained_on_another(store),
    )


def _published(run: "Run", store: "TokenStore", split: str) -> float | None:
    """The paper's result, where this is the paper's model on the paper's corpus."""
    published = run.settings.published
    same_model = (run.vocab_size, run.parameters) == (published.vocab_size, published.parameters)
    if not same_model or run.recipe_name not in recipe.packaged_names():
        return None
    own = recipe.resolve_text(recipe.packaged(run.recipe_name)[1], run.recipe_name).corpus.store
    return getattr(published, split, None) if store.corpus == own else None


def _scored(store: "TokenStore", split: str, count: int) -> metrics.Scored:
    """The words and bytes that the scored tokens stand for; only a whole split has them counted."""
    info = store.info(split)
    whole = count == info.tokens
    words = info.words if whole and info.words else None
    if store.unit == "byte":
        return metrics.Scored(tokens=count, words=words, bytes=count if store.every_byte_scored else None)
    return metrics.Scored(tokens=count, words=words, bytes=info.bytes if whole and store.every_byte_scored else None)


def of_file(opened: "OpenRun", file: str, positions: int | None) -> ScoredText:
    """A text file, or standard input where the file is "-"; a vocabulary of bytes reads any bytes.

    Raises:
        UsageError: it cannot be read.
        VocabularyError: it is no UTF-8, has symbols that the vocabulary lacks, or nothing to predict.
    """
    from txlcli.core.training.segments import scored_stream

    data, vocab = _read(file), opened.vocab
    text = _decoded(file, data) if vocab.tokenizer != "byte" else None
    if text and vocab.tokenizer == "char" and "\n" not in vocab.ids_of:
        text = text.removesuffix("\n").removesuffix("\r")  # which editors put there; text8 knows no lines
    ids = vocab.encode_bytes(data) if text is None else vocab.encode(text)
    inputs, targets = scored_stream(ids, vocab.boundary, positions)
    if not len(targets):
        raise VocabularyError(f"--text {file}: no token to predict; give a longer text")
    lost = int((targets == vocab.unknown).sum()) if vocab.unknown is not None else 0
    if lost:
        console.say(f"{lost:,} of {len(targets):,} tokens are unknown to the vocabulary and read as <unk>")
    unit = "piece" if vocab.tokenizer == "sentencepiece" else vocab.tokenizer
    words = size = None
    if text is None:
        size = None if vocab.dropped else len(targets)
    elif len(targets) == len(ids):  # the whole text
        words = len(text.split()) + text.count("\n") if vocab.boundary is not None else None
        size = len(data) if unit == "piece" else None
    return ScoredText(
        title=printable(file),
        inputs=inputs,
        targets=targets,
        scored=metrics.Scored(tokens=len(targets), words=words, bytes=size),
        unit=unit,
        conventions={},
    )


def _read(file: str) -> bytes:
    try:
        return read_stdin() if file == "-" else Path(file).read_bytes()
    except OSError as error:
        raise UsageError(f"--text {file}: cannot be read ({error.strerror}); check the path") from error


def _decoded(file: str, data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise VocabularyError(f"--text {file}: no UTF-8 at byte {error.start}; convert it first") from error
