"""Texts that are scored: a split of the run's store, or a text of the user's."""

import codecs
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from txlcli.config import recipe
from txlcli.core.reading.documents import document_spans
from txlcli.core.reading.scoring import scored_stream
from txlcli.corpora import CORPORA
from txlcli.corpora.documents import note_on_undivided
from txlcli.corpora.locate import utf8_name
from txlcli.corpora.signatures import HEAD, conversion, encoding_of
from txlcli.data.token_store import TokenStore, corpus_name
from txlcli.data.vocabulary import Vocab, count_words
from txlcli.errors import StoreError, VocabularyError
from txlcli.runs.loading import OpenModel, OpenRun
from txlcli.runs.run_directory import Run
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.user_text import UserText
from txlcli.workflows.workspace import Workspace


@dataclass(frozen=True, kw_only=True)
class ScoredText:
    """Text to score: inputs and targets (T,), and the original text that the targets stand for."""

    title: str
    inputs: NDArray[np.integer]
    targets: NDArray[np.integer]
    data: bytes = b""
    """A user's text, which was encoded; empty for a split."""
    added_bytes: int = 0
    """Bytes that the first token has before the text: a blank that a tokenizer of others adds."""
    words: int | None
    """Number of original words, with line ends counted as in the benchmark; None if unknown."""
    size: int | None
    """Number of original bytes; None unless all bytes of the text are scored."""
    documents: "tuple[ScoredText, ...]" = ()
    """Documents of a user's text; empty for one text, and for a split."""
    document_spans: Sequence[tuple[int, int]] = ()
    """First target of each document and the one after its last, if each is read from an empty memory."""
    unit: str
    conventions: dict[str, str] = field(default_factory=dict)
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

    @property
    def parts(self) -> "tuple[ScoredText, ...]":
        """The documents, or the text itself if it has none."""
        return self.documents or (self,)

    @property
    def spans(self) -> Sequence[tuple[int, int]]:
        """Spans of the documents, or of the text itself."""
        return self.document_spans or [(0, len(self.targets))]


def read_text(opened: OpenModel, options: EvalOptions, workspace: Workspace) -> ScoredText:
    """Return the user's text that the options name, or a split of the run's store."""
    if options.text:
        return read_user_text(opened, options, workspace.reporter)
    split = options.split or "test"
    return split_text(opened.as_run, split, options.positions, workspace, by_document=options.reset_at_documents)


def read_user_text(opened: OpenModel, options: EvalOptions, reporter: Reporter) -> ScoredText:
    """Return the user's text that the options name, or its documents; say how many tokens the vocabulary lacks.

    Documents that have no token to predict are left out.
    """
    sources, notes = _documents_of(options)
    read = _read_each(sources, opened, options)
    texts = [text for text in read if len(text.targets)]
    title = f"{len(options.text)} texts"
    if len(options.text) == 1:
        title = options.text[0].title
    if not texts:
        raise VocabularyError(f"{title}: no token to predict; give a longer text")
    if len(texts) < len(read):
        notes.append(f"documents without a token to predict, which were left out: {len(read) - len(texts):,}")
    text = texts[0]
    if options.reads_documents:
        text = _joined(texts, title, whole=len(read) == len(sources))
    tokens = len(text.targets)
    unknown = _unknown(text.targets, opened.vocab)
    if unknown:
        remark = f"{unknown:,} of {tokens:,} tokens are not in the vocabulary and are read as <unk>"
        reporter.say(remark)
        if 2 * unknown > tokens:
            notes.append(remark)
    notes += opened.remarks(b"".join(part.data for part in text.parts))
    return replace(text, notes=(*text.notes, *notes))


def split_text(
    opened: OpenRun, split: str, positions: int | None, workspace: Workspace, *, by_document: bool = False
) -> ScoredText:
    """Return a split of the run's store, or its first positions; warn if it may contain training data."""
    warn_if_trained_on(opened, split, workspace)
    return first_positions(opened, split, positions, workspace, by_document=by_document)


def text_of_split(workspace: Workspace, name: str, split: str) -> UserText:
    """Return a split of a token store as text, for a model with another vocabulary."""
    store = workspace.open_store(name)
    data = b"".join(store.vocab.decode_blocks([store.ids(split)]))
    return UserText(f"{name} {split}", data, label=f"{store.path}, {split}")


def warn_if_trained_on(opened: OpenRun, split: str, workspace: Workspace) -> None:
    """Warn if a split of the run's store may contain text that the run was trained on."""
    store = opened.store(workspace.data_dir)
    if opened.trained_on_another(store):
        workspace.reporter.say(
            f"{store.path} was prepared again: its train split is not the one {opened.run.directory} was trained on, "
            f"and its {split} split may contain training data of that run"
        )


def first_positions(
    opened: OpenRun, split: str, positions: int | None, workspace: Workspace, *, by_document: bool
) -> ScoredText:
    """Return the first positions of a split of the run's store, or all of them, to be read in one or by document."""
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
    spans: Sequence[tuple[int, int]] = ()
    if by_document:
        starts = store.sentence_starts(split)
        if starts is None:
            raise StoreError(f"{store.path} does not record where documents begin; prepare it again with `documents`")
        spans = document_spans(starts, store.vocab.boundary, len(targets))
    return ScoredText(
        title=f"{store.name} {split}",
        inputs=inputs,
        targets=targets,
        document_spans=spans,
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


def _read_each(sources: Sequence[UserText], opened: OpenModel, options: EvalOptions) -> list[ScoredText]:
    """Read and encode texts, up to as many positions in all as are to be scored."""
    texts: list[ScoredText] = []
    rest = options.positions
    for source in sources:
        text = _read(source, opened, options, rest)
        texts.append(text)
        if rest is not None:
            rest -= len(text.targets)
            if rest == 0:
                break
    return texts


def _joined(texts: Sequence[ScoredText], title: str, *, whole: bool) -> ScoredText:
    """Return a text of several documents; `whole` is true if these are all of them."""
    all_notes = itertools.chain.from_iterable(text.notes for text in texts)
    edges = itertools.accumulate((len(text.targets) for text in texts), initial=0)
    return ScoredText(
        title=utf8_name(title),
        inputs=np.concatenate([text.inputs for text in texts]),
        targets=np.concatenate([text.targets for text in texts]),
        words=_sum(text.words for text in texts),
        size=_sum(text.size for text in texts),
        documents=tuple(texts),
        document_spans=list(itertools.pairwise(edges)),
        unit=texts[0].unit,
        whole=whole and all(text.whole for text in texts),
        notes=tuple(dict.fromkeys(all_notes)),
    )


def _documents_of(options: EvalOptions) -> tuple[list[UserText], list[str]]:
    """Return the documents of the user's texts, and remarks on folders."""
    unit = options.documents or "files"
    files: list[UserText] = []
    documents: list[UserText] = []
    remarks: list[str] = []
    for source in options.text:
        of_source = source.files(options.column, options.encoding)
        remarks += source.remarks_on(of_source)
        files += of_source
    for file in files:
        documents += file.documents(unit, column=options.column, encoding=options.encoding)
    note = note_on_undivided(unit, files=len(files), documents=len(documents))
    if note is not None:
        remarks.append(note)
    return documents, remarks


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of counts; None if one of them is not known."""
    total = 0
    for count in counts:
        if count is None:
            return None
        total += count
    return total


def _read(source: UserText, opened: OpenModel, options: EvalOptions, positions: int | None) -> ScoredText:
    """Read and encode one text, or its first positions, of which there may be none."""
    read = source.read(column=options.column, encoding=options.encoding)
    vocab = opened.vocab
    data = _as_prepared(read.data, source, vocab)
    vocab.check_has_text()
    try:
        ids = vocab.encode(data)
    except VocabularyError as error:
        raise VocabularyError(f"{source.label}: {error}") from error
    inputs, targets = scored_stream(ids, vocab.boundary, positions)
    whole = len(targets) == _predictable(len(ids), vocab)
    words = None
    if whole:
        words = _scored_words(_count_words(data, len(ids), opened), vocab)
    size = None
    if vocab.tokenizer == "byte" and not vocab.dropped:
        size = len(targets)
    elif vocab.unit == "piece" and vocab.boundary is not None and whole:  # pieces stand for every byte
        size = len(data)
    return ScoredText(
        title=utf8_name(source.title),
        inputs=inputs,
        targets=targets,
        data=data,
        added_bytes=vocab.added_bytes,
        words=words,
        size=size,
        unit=vocab.unit,
        whole=whole,
        notes=read.notes,
    )


def _unknown(targets: NDArray[np.integer], vocab: Vocab) -> int:
    """Return the number of targets that are not in the vocabulary."""
    if vocab.unknown is None:
        return 0
    return int((targets == vocab.unknown).sum())


def _count_words(data: bytes, tokens: int, opened: OpenModel) -> int:
    """Return the number of words of a user's text, and of its line ends if the corpus of a run counts them."""
    vocab = opened.vocab
    words, lines = count_words(data, tokens, vocab.tokenizer, has_boundary=vocab.boundary is not None)
    name = corpus_name(opened.settings.corpus.store)
    if isinstance(opened, OpenRun) and opened.run.corpus:
        name = opened.run.corpus
    corpus = CORPORA.get(name)
    if vocab.keeps_line_ends and (corpus is None or corpus.counts_line_ends):
        words += lines
    return words


def _as_prepared(data: bytes, source: UserText, vocab: Vocab) -> bytes:
    """Return a user's text with the end that `txl prepare` gives a split; reject another encoding.

    A byte order mark belongs to a file: a text that is not in one keeps it. A byte-level model reads such a text as it
    is.
    """
    if source.data is None:
        data = data.removeprefix(codecs.BOM_UTF8)
    elif vocab.tokenizer == "byte":
        return data
    encoding = encoding_of(data[:HEAD])
    if encoding:
        raise VocabularyError(f"{source.label}: {encoding} is not UTF-8; {conversion(encoding)}")
    if vocab.tokenizer == "char" and vocab.unknown is None and "\n" not in vocab.ids_of:
        return data.removesuffix(b"\n").removesuffix(b"\r")  # added by editors; text8 has no line ends
    has_text = bool(data) and not data.isspace()
    if vocab.tokenizer == "word" and source.ends_file and has_text and not data.endswith((b"\n", b"\r")):
        return data + b"\n"
    return data
