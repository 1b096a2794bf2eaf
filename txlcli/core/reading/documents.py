"""Scores texts that do not belong together, several side by side, each from an empty memory.

Axes: B batch, L segment, N window length, T tokens of a document.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.modes import autocast
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Scores, Stream, Tokens, score
from txlcli.core.reading.windows import score_windows

AT_ONCE = 1024
"""Documents that are sorted by length together."""


@dataclass(frozen=True)
class Document:
    """Text that is read from an empty memory."""

    inputs: Tokens
    """Tokens read, (T,)."""
    targets: Tokens
    """Tokens predicted, (T,); target t follows input t."""
    compared: int = 0
    """Number of last targets that are compared with the likeliest token."""


@dataclass(frozen=True)
class DocumentScore:
    """Result of one document."""

    losses_nats: NDArray[np.float32]
    """Cross entropy of each target that was scored; the last one belongs to the last target."""
    is_likeliest: bool
    """True if each of the compared targets is the likeliest token there."""


def document_spans(starts: Tokens, boundary: int | None, count: int) -> list[tuple[int, int]]:
    """Return the first target of each document, and the one after its last, in a stream of `scoring.scored_stream`.

    Args:
        starts: places of the first tokens of documents in the split.
        boundary: with which the stream was made.
        count: targets of the stream.
    """
    firsts = starts.astype(np.int64)
    if boundary is None:
        firsts -= 1  # the first token of the text is not a target
    firsts = np.maximum(firsts, 0)
    edges = [*np.unique(firsts[firsts < count]).tolist(), count]
    return list(pairwise(edges))


def score_spans(stream: Stream, spans: Sequence[tuple[int, int]]) -> Scores:
    """Score the documents between these targets, each from an empty memory, some at once.

    The first token of a document is predicted from the one before it alone.
    """
    started = time.perf_counter()
    losses = [np.empty(0, np.float32)]
    for number in range(0, len(spans), AT_ONCE):
        batch = spans[number : number + AT_ONCE]
        documents = [Document(stream.inputs[first:end], stream.targets[first:end]) for first, end in batch]
        for scores in score_documents(stream.model, documents, stream.settings):
            losses.append(scores.losses_nats)
        _, scored = batch[-1]
        stream.on_tokens(scored)
    seconds = time.perf_counter() - started
    return Scores(np.concatenate(losses), seconds, min(stream.settings.batch_size, len(spans)))


def documents_of(stream: Stream, spans: Sequence[tuple[int, int]]) -> Iterator[Stream]:
    """Yield each document between these targets as a stream of its own; their readers share one copy of the model."""
    model = make_reader(stream.model, stream.settings, length=1).model
    for first, end in spans:

        def reach(done: int, first: int = first) -> None:
            stream.on_tokens(first + done)

        inputs = stream.inputs[first:end]
        yield replace(stream, model=model, inputs=inputs, targets=stream.targets[first:end], on_tokens=reach)


def score_spans_in_windows(stream: Stream, spans: Sequence[tuple[int, int]], *, stride: int) -> Scores:
    """Score the documents between these targets in windows, which reach into no other document; see `score_windows`."""
    scores = [score_windows(document, stride=stride) for document in documents_of(stream, spans)]
    losses = np.concatenate([of_document.losses_nats for of_document in scores])
    return Scores(losses, sum(of_document.seconds for of_document in scores), lanes=1)


def score_documents(model: LanguageModel, documents: Sequence[Document], settings: EvalSettings) -> list[DocumentScore]:
    """Score each document as `scoring.score` does in one lane, `settings.batch_size` of them side by side.

    Documents of similar length are read together; a shorter one is padded at its end, which changes none of its losses.
    """
    by_length = sorted(range(len(documents)), key=lambda number: len(documents[number].targets))
    model = make_reader(model, settings, length=1).model  # all readers share one copy
    scores: dict[int, DocumentScore] = {}
    for first in range(0, len(by_length), settings.batch_size):
        numbers = by_length[first : first + settings.batch_size]
        batch = [documents[number] for number in numbers]
        scores.update(zip(numbers, _score_batch(model, batch, settings), strict=True))
    return [scores[number] for number in range(len(documents))]


def _score_batch(model: LanguageModel, batch: Sequence[Document], settings: EvalSettings) -> list[DocumentScore]:
    """Score documents of rising length side by side, each as a lane of the longest."""
    shape = (len(batch), max(1, len(batch[-1].targets)))
    inputs = np.zeros(shape, dtype=np.int64)
    targets = np.zeros(shape, dtype=np.int64)
    compared = np.zeros(shape, dtype=np.int64)
    for row, document in enumerate(batch):
        length = len(document.targets)
        inputs[row, :length] = document.inputs
        targets[row, :length] = document.targets
        compared[row, length - document.compared : length] = 1
    segments = iter(torch.from_numpy(compared).split(settings.seg_len, dim=1))
    is_likeliest = [True] * len(batch)

    def compare(hidden: Tensor, targets: Tensor, _losses: Tensor) -> None:
        for row, at in next(segments).nonzero().tolist():
            if is_likeliest[row]:
                with autocast(model.device, model.backend.precision):
                    _, likeliest = model.softmax.likeliest(hidden[row, at][None], 1)
                is_likeliest[row] = int(likeliest) == int(targets[row, at])

    stream = Stream(model, inputs.ravel(), targets.ravel(), settings.with_batch_size(len(batch)))
    with torch.inference_mode():
        losses = score(stream, on_segment=compare).losses_nats.reshape(shape)
    scores = []
    for row, document in enumerate(batch):
        scores.append(DocumentScore(losses[row, : len(document.targets)], is_likeliest[row]))
    return scores


def score_in_windows(model: LanguageModel, document: Document, settings: EvalSettings) -> DocumentScore:
    """Score a document in disjoint windows of N tokens; with compared targets, at most N, the last window alone.

    The settings are those of `score_windows`.
    """
    attn_len = settings.seg_len
    if document.compared or not len(document.targets):
        last = Document(document.inputs[-attn_len:], document.targets[-attn_len:], document.compared)
        return score_documents(model, [last], settings)[0]
    stream = Stream(model, document.inputs, document.targets, settings)
    return DocumentScore(score_windows(stream, stride=attn_len).losses_nats, True)
