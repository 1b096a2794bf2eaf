"""Scores texts that do not belong together, several side by side, each from an empty memory.

Axes: B batch, L segment, N window length, T tokens of a document.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader, make_window_reader, sized_for
from txlcli.core.reading.scoring import Tokens
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


def score_documents(
    model: LanguageModel, documents: Sequence[Document], settings: EvalSettings, *, precision: str = "fp32"
) -> list[DocumentScore]:
    """Score each document as `scoring.score` does in one lane, `settings.batch_size` of them side by side.

    Documents of similar length are read together; a shorter one is padded at its end, which changes none of its losses.

    Args:
        model: in any mode.
        documents: in any order; the scores have the same.
        settings: L, M, B, the limits on distance.
        precision: of matrix products.
    """
    by_length = sorted(range(len(documents)), key=lambda number: len(documents[number].targets))
    scores: dict[int, DocumentScore] = {}
    for first in range(0, len(by_length), settings.batch_size):
        numbers = by_length[first : first + settings.batch_size]
        batch = [documents[number] for number in numbers]
        longest = len(batch[-1].targets)
        reader = make_reader(
            model, sized_for(model, settings, max(longest, 1)), batch_size=len(batch), precision=precision
        )
        model = reader.model  # further readers need no copy of their own
        scores.update(zip(numbers, _read_batch(reader, batch, longest), strict=True))
    return [scores[number] for number in range(len(documents))]


def _read_batch(reader: Reader, batch: Sequence[Document], longest: int) -> list[DocumentScore]:
    inputs = _padded([document.inputs for document in batch], longest).to(reader.device)
    targets = _padded([document.targets for document in batch], longest)
    on_device = targets.to(reader.model.targets_device)
    losses = torch.empty(len(batch), longest)
    is_likeliest = [True] * len(batch)
    for start in range(0, longest, reader.seg_len):
        part = slice(start, min(start + reader.seg_len, longest))
        hidden = reader.read(inputs[:, part])
        losses[:, part] = reader.losses(hidden, on_device[:, part]).float().cpu()
        for row, document in enumerate(batch):
            end = len(document.targets)
            compared = range(max(start, end - document.compared), min(part.stop, end))
            is_likeliest[row] = is_likeliest[row] and _likeliest(reader, hidden[row], targets[row], compared, start)
    return [
        DocumentScore(losses[row, : len(document.targets)].numpy(), is_likeliest[row])
        for row, document in enumerate(batch)
    ]


def _padded(streams: Sequence[Tokens], length: int) -> Tensor:
    """Return streams as rows (B, length), filled up with zeros."""
    rows = np.zeros((len(streams), length), dtype=np.int64)
    for row, stream in zip(rows, streams, strict=True):
        row[: len(stream)] = stream
    return torch.from_numpy(rows)


def _likeliest(reader: Reader, hidden: Tensor, targets: Tensor, positions: range, first: int) -> bool:
    """True if the target at each position is the likeliest token; `first` is the position of the first hidden state."""
    for position in positions:
        _, tokens = reader.likeliest(hidden[position - first][None], 1)
        if int(tokens) != int(targets[position]):
            return False
    return True


def score_in_windows(
    model: LanguageModel,
    document: Document,
    *,
    attn_len: int,
    max_distance: int | None = None,
    precision: str = "fp32",
) -> DocumentScore:
    """Score a document in disjoint windows of N tokens, or its compared targets in the last window alone.

    Args:
        model: in any mode.
        document: at most N of its targets are compared.
        attn_len: N.
        max_distance: distances beyond it share one encoding.
        precision: of matrix products.
    """
    if not document.compared:
        if not len(document.targets):
            return DocumentScore(np.zeros(0, dtype=np.float32), True)
        scores = score_windows(
            model,
            document.inputs,
            document.targets,
            attn_len=attn_len,
            stride=attn_len,
            max_distance=max_distance,
            precision=precision,
        )
        return DocumentScore(scores.losses_nats, True)
    count = document.compared
    inputs, targets = document.inputs[-attn_len:], torch.from_numpy(np.array(document.targets[-count:], dtype=np.int64))
    reader = make_window_reader(model, len(inputs), windows=1, precision=precision, max_distance=max_distance)
    tokens = torch.from_numpy(np.array(inputs, dtype=np.int64))[None].to(reader.device)
    hidden = reader.read_last(tokens, count=count)
    losses = reader.losses(hidden, targets[None].to(reader.model.targets_device))[0].float().cpu()
    return DocumentScore(losses.numpy(), _likeliest(reader, hidden[0], targets, range(count), 0))
