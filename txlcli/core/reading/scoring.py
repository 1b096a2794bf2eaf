"""The loss of every token of a split, at a given segment and memory length.

Axes: B batch, L segment, d model width, T tokens scored, K likeliest tokens, V vocabulary.
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.device import send
from txlcli.core.kernels.modes import autocast
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader

MAX_LOGITS = 1 << 24
"""Log-probabilities that are computed at once: 64 MiB in fp32."""
Tokens = NDArray[np.integer]
"""A stream of ids, (T,)."""


@dataclass(frozen=True)
class Stream:
    """A text, and how a model scores it."""

    model: LanguageModel
    """In any mode."""
    inputs: Tokens
    """Tokens read, (T,)."""
    targets: Tokens
    """Tokens predicted, (T,); target t follows input t."""
    settings: EvalSettings
    """L, M, B and the limits on distance; windows of N = L tokens are read W = B at once."""
    on_tokens: Callable[[int], None] = lambda _: None
    """Called with the number of tokens scored so far; of a part of the lanes, as if the others were read as fast."""
    new_reader: Callable[..., Reader] | None = None
    """Makes the reader of a text in lanes, given settings and `length`; by default `make_reader`, as for windows."""

    def lanes(self, selected: range | None = None) -> "Lanes":
        """Return the lanes, of which those with the selected numbers are read; all by default."""
        return Lanes.of(len(self.targets), self.settings, selected)


def scored_stream(ids: Tokens, boundary: int | None, count: int | None = None) -> tuple[Tokens, Tokens]:
    """Return the inputs and targets, (T,) each, for scoring a split (N,), or its first `count` predicted tokens.

    With a boundary, the token that ends a line or sentence, the stream begins with an implied one and every token is
    predicted; without, for bytes and characters, the first token has no context and is only read.
    """
    if boundary is None:
        if count is not None:
            ids = ids[: count + 1]
        tokens = ids.astype(np.int64)
        return tokens[:-1], tokens[1:]
    targets = ids[:count].astype(np.int64)
    return np.insert(targets[:-1], 0, boundary), targets


@dataclass(frozen=True)
class Scores:
    """Losses of a stream that was read once."""

    losses_nats: NDArray[np.float32]
    """Cross entropy of each target, (T,), in the order of the stream."""
    seconds: float
    """Time of the reading, without the loading of weights."""
    lanes: int
    """Number of lanes, contiguous pieces that were read side by side; all but the first start without context."""

    @property
    def total_nats(self) -> float:
        """Sum over all tokens, in float64."""
        return float(self.losses_nats.sum(dtype=np.float64))

    @property
    def ms_per_token(self) -> float:
        """Wall time per scored token, in milliseconds."""
        return 1e3 * self.seconds / len(self.losses_nats)


def attention_span(model: LanguageModel, settings: EvalSettings, count: int | None = None) -> tuple[int, int]:
    """Return the smallest and the largest number of keys that a query sees once the memory is full.

    In a text of T tokens, no query sees more than its lane, which may be short.
    """
    before = model.settings.memory_keys(settings.mem_len, settings.compressed_len)
    fewest = settings.key_limit or before + 1
    most = settings.key_limit or before + settings.seg_len
    longest = model.settings.attention_window or most
    if count is not None and not model.memory_starts_full:
        longest = min(longest, Lanes.of(count, settings).length)
    return min(fewest, longest), min(most, longest)


def score(
    stream: Stream,
    *,
    selected: range | None = None,
    on_segment: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> Scores:
    """Score every target once, given all inputs up to it that memory and segment hold.

    The lanes are contiguous pieces of the stream; the first input of a lane is the last target of the piece before,
    so that no token is lost. `selected` are the numbers of the lanes to score, all by default.

    `on_segment` is called with the last hidden states (B, l, d) of each segment, its targets and losses (B, l); the
    targets may be on the host.
    """
    started = time.perf_counter()
    lanes = stream.lanes(selected)
    settings = stream.settings.with_batch_size(len(lanes.selected))
    new_reader = stream.new_reader or partial(make_reader, stream.model)
    reader = new_reader(settings, length=lanes.length)
    losses = torch.empty(len(lanes.selected), lanes.length, device=reader.device)
    for part in lanes.parts(reader.seg_len):
        inputs = lanes.cut(stream.inputs, reader.device, part)
        targets = lanes.cut(stream.targets, reader.model.targets_device, part)
        hidden = reader.read(inputs)
        segment_losses = reader.losses(hidden, targets)
        losses[:, part] = segment_losses
        if on_segment:
            on_segment(hidden, targets, segment_losses)
        stream.on_tokens(min(part.stop * lanes.n_lanes, lanes.n_tokens))
    in_order = lanes.join(losses).numpy()  # waits for the device
    return Scores(in_order, time.perf_counter() - started, lanes.n_lanes)


def score_with_likeliest(stream: Stream, count: int) -> tuple[Scores, NDArray[np.int64], NDArray[np.float32]]:
    """Return the losses (T,), and ids and probabilities of the K = `count` likeliest tokens, likeliest first, (K, T).

    K is at most V.
    """
    model = stream.model
    rows = max(1, MAX_LOGITS // model.vocab_size)
    segment_ids: list[Tensor] = []  # (B, l, K) each
    segment_probabilities: list[Tensor] = []

    def look_up(hidden: Tensor, _targets: Tensor, _losses: Tensor) -> None:
        parts = []
        with autocast(model.device, model.backend.precision):
            for part in hidden.flatten(0, 1).split(rows):
                parts.append(model.log_probs(part[None])[0].topk(count))
        shape = hidden.shape[:2]
        ids = torch.cat([part.indices for part in parts]).unflatten(0, shape)
        log_probs = torch.cat([part.values for part in parts]).unflatten(0, shape)
        segment_ids.append(ids.cpu())
        segment_probabilities.append(log_probs.exp().float().cpu())

    def in_order(parts: list[Tensor]) -> Tensor:
        return stream.lanes().join(torch.cat(parts, dim=1).movedim(-1, 0))

    with torch.inference_mode():
        scores = score(stream, on_segment=look_up)
        likeliest = in_order(segment_ids).numpy()
        probabilities = in_order(segment_probabilities).numpy()
    return scores, likeliest, probabilities


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A stream of T tokens as B contiguous pieces, of which some are read side by side."""

    n_tokens: int
    """T."""
    n_lanes: int
    """B."""
    length: int
    """Tokens of a lane, ceil(T / B)."""
    selected: range
    """Numbers of the lanes that are read, from 0."""

    @classmethod
    def of(cls, n_tokens: int, settings: EvalSettings, selected: range | None = None) -> "Lanes":
        """Cut T tokens into `settings.batch_size` lanes, or fewer if the stream is short; read all by default."""
        length = math.ceil(n_tokens / min(settings.batch_size, n_tokens))
        n_lanes = math.ceil(n_tokens / length)
        if selected is None:
            selected = range(n_lanes)
        return cls(n_tokens=n_tokens, n_lanes=n_lanes, length=length, selected=selected)

    @property
    def missing(self) -> int:
        """Tokens by which the last lane that is read is shorter than `length`."""
        return max(0, self.selected.stop * self.length - self.n_tokens)

    @property
    def tokens(self) -> int:
        """Number of tokens in the lanes that are read."""
        return len(self.selected) * self.length - self.missing

    def cut(self, tokens: Tokens, device: torch.device, part: slice = slice(None)) -> Tensor:
        """Cut (T,) -> (b, l), a part of each lane; the last one is filled up with tokens whose losses are dropped."""
        start, stop, _ = part.indices(self.length)
        rows = np.zeros((len(self.selected), stop - start), dtype=np.int64)
        for lane, row in zip(self.selected, rows, strict=True):
            first = lane * self.length + start
            piece = tokens[first : min(first + len(row), self.n_tokens)]
            row[: len(piece)] = piece
        return send(torch.from_numpy(rows), device)

    def parts(self, seg_len: int) -> Iterator[slice]:
        """Return the segments of every lane, in order."""
        for first in range(0, self.length, seg_len):
            yield slice(first, min(first + seg_len, self.length))

    def join(self, per_lane: Tensor) -> Tensor:
        """Join (..., b, length) to a piece of the stream on the host, (..., tokens)."""
        return per_lane.flatten(-2)[..., : self.tokens].cpu()
