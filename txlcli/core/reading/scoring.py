"""The loss of every token of a split, at a given segment and memory length.

Axes: B batch, L segment, T tokens scored.
"""

import functools
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.decoder import key_limit
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader, sized_for

BLOCK_TOKENS = 1 << 18
"""Tokens that are converted and sent to the device together."""
Tokens = NDArray[np.integer]
"""A stream of ids, (T,)."""
NewBatchReader = Callable[..., Reader]
"""Makes another reader of a model, given the settings and `batch_size`."""


def scored_stream(ids: Tokens, boundary: int | None, count: int | None = None) -> tuple[Tokens, Tokens]:
    """Return the inputs and targets, (T,) each, for scoring a split.

    With a boundary the stream begins with an implied one and every token is predicted; without, the first token has no
    context and is only read.

    Args:
        ids: the split, (N,).
        boundary: the token that ends a line or sentence, None for bytes and characters.
        count: predict at most this many tokens, from the start of the split.
    """
    head = ids if count is None else ids[: count + (boundary is None)]
    tokens = head.astype(np.int64)
    if boundary is None:
        return tokens[:-1], tokens[1:]
    return np.concatenate([np.array([boundary], dtype=np.int64), tokens[:-1]]), tokens


@dataclass(frozen=True)
class Total:
    """Summed loss of a stream that was read once."""

    nats: float
    """Sum over all tokens, in float64."""
    tokens: int
    seconds: float


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


def attention_span(model: ModelSettings, settings: EvalSettings) -> tuple[int, int]:
    """Return the smallest and the largest number of keys that a query sees once the memory is full.

    Args:
        model: settings of the model, which may have a window.
        settings: L, M and same_length.
    """
    limit, window = key_limit(settings.same_length, settings.mem_len), model.attention_window
    before = model.memory_keys(settings.mem_len, settings.compressed_len)
    fewest, most = (before + 1, before + settings.seg_len) if limit is None else (limit, limit)
    return (fewest, most) if window is None else (min(fewest, window), min(most, window))


def attention_span_in(model: LanguageModel, settings: EvalSettings, count: int) -> tuple[int, int]:
    """Return `attention_span` in a text of T tokens: no query sees more than its lane, which may be short."""
    fewest, most = attention_span(model.settings, settings)
    if model.memory_starts_full:
        return fewest, most
    lane_len = Lanes.of(count, settings).length
    return min(fewest, lane_len), min(most, lane_len)


def keys_seen(model: ModelSettings, settings: EvalSettings) -> float:
    """Return the mean number of keys that a query sees once the memory is full."""
    limit = key_limit(settings.same_length, settings.mem_len)
    if limit is not None:
        return min(limit, model.attention_window or limit)
    before = model.memory_keys(settings.mem_len, settings.compressed_len)
    return model.mean_keys(seg_len=settings.seg_len, mem_len=before)


def score(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    settings: EvalSettings,
    *,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
    on_segment: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> Scores:
    """Score every target once, given all inputs up to it that memory and segment hold.

    The lanes are contiguous pieces of the stream; the first input of a lane is the last target of the piece before,
    so that no token is lost.

    Args:
        model: in any mode.
        inputs: (T,) tokens read.
        targets: (T,) tokens predicted; target t follows input t.
        settings: L, M, B, the limits on distance.
        precision: of matrix products.
        on_tokens: called with the number of tokens scored so far.
        on_segment: called with the last hidden states (B, l, d) of each segment, its targets and losses (B, l);
            the targets may be on the host.
    """
    lanes = Lanes.of(len(targets), settings)
    losses, seconds = score_lanes(
        model,
        inputs,
        targets,
        settings,
        range(lanes.number),
        precision=precision,
        on_tokens=on_tokens,
        on_segment=on_segment,
    )
    return Scores(lanes.join(losses).numpy(), seconds, lanes.number)


def score_lanes(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    settings: EvalSettings,
    numbers: range,
    *,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
    on_segment: Callable[[Tensor, Tensor, Tensor], None] | None = None,
) -> tuple[Tensor, float]:
    """Score the lanes with these numbers, given the whole stream; the other arguments are those of `score`.

    Returns their losses (b, length) on the host, and the seconds it took. `on_tokens` receives the number of tokens
    scored so far if the other lanes are read as fast.
    """
    lanes = Lanes.of(len(targets), settings)
    losses = torch.empty(len(numbers), lanes.length, device=model.device)
    started = time.perf_counter()
    for part, hidden, target_part, loss_part in _segments(model, inputs, targets, lanes, settings, precision, numbers):
        losses[:, part] = loss_part
        if on_segment:
            on_segment(hidden, target_part, loss_part)
        if on_tokens:
            on_tokens(min(part.stop * lanes.number, lanes.count))
    return losses.cpu(), time.perf_counter() - started  # waits for the device


def score_total(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    settings: EvalSettings,
    *,
    precision: str = "fp32",
    numbers: range | None = None,
    on_tokens: Callable[[int], None] | None = None,
    new_reader: NewBatchReader | None = None,
) -> Total:
    """Score as `score_lanes` does, all lanes by default, and keep the sum of all losses only.

    `new_reader` makes another reader of the model.
    """
    lanes = Lanes.of(len(targets), settings)
    numbers = range(lanes.number) if numbers is None else numbers
    missing = lanes.missing if numbers[-1] == lanes.number - 1 else 0
    nats = torch.zeros((), dtype=torch.float64, device=model.device)
    started = time.perf_counter()
    segments = _segments(model, inputs, targets, lanes, settings, precision, numbers, new_reader=new_reader)
    for part, _, _, losses in segments:
        nats += losses[:-1].sum(dtype=torch.float64)
        nats += losses[-1, : max(0, lanes.length - missing - part.start)].sum(dtype=torch.float64)
        if on_tokens:
            on_tokens(min(part.stop * lanes.number, lanes.count))
    return Total(float(nats), len(numbers) * lanes.length - missing, time.perf_counter() - started)


def _segments(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    lanes: "Lanes",
    settings: EvalSettings,
    precision: str,
    numbers: range,
    *,
    new_reader: NewBatchReader | None = None,
) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
    """Yield each segment of some lanes: its place in them, last hidden states (B, l, d), targets and losses (B, l).

    Tokens are converted and sent to the device by blocks of segments, so a long stream takes no memory.
    """
    if new_reader is None:
        new_reader = functools.partial(make_reader, model, precision=precision)
    reader = new_reader(sized_for(model, settings, lanes.length), batch_size=len(numbers))
    for block in lanes.parts(settings.seg_len * max(1, BLOCK_TOKENS // (settings.seg_len * len(numbers)))):
        input_block = lanes.cut(inputs, reader.device, block, numbers)
        target_block = lanes.cut(targets, reader.model.targets_device, block, numbers)
        for first in range(block.start, block.stop, settings.seg_len):
            part = slice(first, min(first + settings.seg_len, block.stop))
            within = slice(part.start - block.start, part.stop - block.start)
            hidden = reader.read(input_block[:, within])
            yield part, hidden, target_block[:, within], reader.losses(hidden, target_block[:, within])


@dataclass(frozen=True, kw_only=True)
class Lanes:
    """A stream of T tokens as B contiguous pieces, side by side."""

    count: int
    """T."""
    number: int
    """B."""
    length: int
    """Tokens of a lane, ceil(T / B)."""

    @classmethod
    def of(cls, count: int, settings: EvalSettings) -> "Lanes":
        """Cut T tokens into at most `settings.batch_size` lanes; a short stream may fill fewer."""
        length = -(-count // min(settings.batch_size, count))
        return cls(count=count, number=-(-count // length), length=length)

    @property
    def missing(self) -> int:
        """Tokens by which the last lane is shorter than `length`."""
        return self.number * self.length - self.count

    def cut(
        self, tokens: Tokens, device: torch.device, part: slice | None = None, numbers: range | None = None
    ) -> Tensor:
        """Cut (T,) -> (B, l), a part of each lane, or of those with these `numbers`.

        The last lane is filled up with tokens whose losses are dropped.
        """
        start, stop = (0, self.length) if part is None else (part.start, part.stop)
        numbers = range(self.number) if numbers is None else numbers
        rows = np.zeros((len(numbers), stop - start), dtype=np.int64)
        for lane, row in zip(numbers, rows, strict=True):
            first = lane * self.length + start
            piece = tokens[first : min(first + len(row), self.count)]
            row[: len(piece)] = piece
        return torch.from_numpy(rows).to(device)

    def parts(self, seg_len: int) -> Iterator[slice]:
        """Return the segments of every lane, in order."""
        return (slice(first, min(first + seg_len, self.length)) for first in range(0, self.length, seg_len))

    def join(self, per_lane: Tensor) -> Tensor:
        """Join (..., B, length) -> (..., T) on the host, in the order of the stream."""
        return per_lane.flatten(-2)[..., : self.count].cpu()
