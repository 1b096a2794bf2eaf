"""Scores texts that do not belong together, several side by side, each from an empty memory.

Axes: B batch, L segment, N window length, T tokens of a document.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.scoring import Stream, Tokens
from txlcli.core.reading.windows import score_windows


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


def score_documents(model: LanguageModel, documents: Sequence[Document], settings: EvalSettings) -> list[DocumentScore]:
    """Score each document as `scoring.score` does in one lane, `settings.batch_size` of them side by side.

    Documents of similar length are read together; a shorter one is padded at its end, which changes none of its losses.
    """
    by_length = sorted(range(len(documents)), key=lambda number: len(documents[number].targets))
    scores: dict[int, DocumentScore] = {}
    for first in range(0, len(by_length), settings.batch_size):
        numbers = by_length[first : first + settings.batch_size]
        batch = [documents[number] for number in numbers]
        length = max(1, len(batch[-1].targets))
        reader = make_reader(model, dataclasses.replace(settings, batch_size=len(batch)), length=length)
        model = reader.model  # further readers need no copy of their own
        scores.update(zip(numbers, _read_batch(reader, batch), strict=True))
    return [scores[number] for number in range(len(documents))]


def _read_batch(reader: Reader, batch: Sequence[Document]) -> list[DocumentScore]:
    """Score documents of rising length, side by side."""
    inputs = _padded([document.inputs for document in batch]).to(reader.device)
    targets = _padded([document.targets for document in batch]).to(reader.model.targets_device)
    losses = torch.empty(targets.shape)
    is_likeliest = [True] * len(batch)
    for start in range(0, targets.shape[1], reader.seg_len):
        stop = min(start + reader.seg_len, targets.shape[1])
        hidden = reader.read(inputs[:, start:stop])
        losses[:, start:stop] = reader.losses(hidden, targets[:, start:stop]).float().cpu()
        for row, document in enumerate(batch):
            end = len(document.targets)
            compared = slice(max(start, end - document.compared), max(start, min(stop, end)))
            within = slice(compared.start - start, compared.stop - start)
            is_likeliest[row] &= _are_likeliest(reader, hidden[row, within], document.targets[compared])
    return [
        DocumentScore(losses[row, : len(document.targets)].numpy(), is_likeliest[row])
        for row, document in enumerate(batch)
    ]


def _padded(streams: Sequence[Tokens]) -> Tensor:
    """Return streams as rows (B, T), filled up with zeros; the last one is the longest."""
    rows = np.zeros((len(streams), len(streams[-1])), dtype=np.int64)
    for row, stream in zip(rows, streams, strict=True):
        row[: len(stream)] = stream
    return torch.from_numpy(rows)


def _are_likeliest(reader: Reader, hidden: Tensor, targets: Tokens) -> bool:
    """True if each target (x,) is the likeliest token after its hidden state (x, d)."""
    likeliest = (int(reader.likeliest(state[None], 1)[1]) for state in hidden)
    return all(token == int(target) for token, target in zip(likeliest, targets, strict=True))


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
