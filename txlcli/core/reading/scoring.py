"""The loss of every token of a split, at a given segment and memory length.

Axes: B lanes, L segment, T tokens scored.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.reading.decoder import key_limit
from txlcli.core.reading.registry import make_reader, sized_for

Tokens = NDArray[np.integer]
"""A stream of ids, (T,)."""


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


def attention_span(settings: EvalSettings) -> tuple[int, int]:
    """Return the smallest and the largest number of keys that a query sees once the memory is full."""
    limit = key_limit(settings.same_length, settings.mem_len)
    if limit is not None:
        return limit, limit
    return settings.mem_len + 1, settings.mem_len + settings.seg_len


def attention_span_in(model: LanguageModel, settings: EvalSettings, count: int) -> tuple[int, int]:
    """Return `attention_span` in a text of T tokens: no query sees more than its lane, which may be short."""
    fewest, most = attention_span(settings)
    if model.memory_starts_full:
        return fewest, most
    lane_len = Lanes.of(count, settings).length
    return min(fewest, lane_len), min(most, lane_len)


def keys_seen(settings: EvalSettings) -> float:
    """Return the mean number of keys that a query sees once the memory is full."""
    return sum(attention_span(settings)) / 2


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
    reader = make_reader(model, sized_for(model, settings, lanes.length), batch_size=lanes.number, precision=precision)
    input_lanes, target_lanes = lanes.cut(inputs, reader.device), lanes.cut(targets, reader.model.targets_device)
    losses = torch.empty(lanes.number, lanes.length, device=reader.device)
    started = time.perf_counter()
    for part in lanes.parts(settings.seg_len):
        hidden = reader.read(input_lanes[:, part])
        losses[:, part] = reader.losses(hidden, target_lanes[:, part])
        if on_segment:
            on_segment(hidden, target_lanes[:, part], losses[:, part])
        if on_tokens:
            on_tokens(min(part.stop * lanes.number, lanes.count))
    in_order = lanes.join(losses).numpy()  # waits for the device
    return Scores(in_order, time.perf_counter() - started, lanes.number)


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

    def cut(self, tokens: Tokens, device: torch.device) -> Tensor:
        """Cut (T,) -> (B, length); the last lane is filled up with tokens whose losses are dropped."""
        padded = np.zeros(self.number * self.length, dtype=np.int64)
        padded[: len(tokens)] = tokens
        return torch.from_numpy(padded.reshape(self.number, self.length)).to(device)

    def parts(self, seg_len: int) -> Iterator[slice]:
        """Return the segments of every lane, in order."""
        return (slice(first, min(first + seg_len, self.length)) for first in range(0, self.length, seg_len))

    def join(self, per_lane: Tensor) -> Tensor:
        """Join (..., B, length) -> (..., T) on the host, in the order of the stream."""
        return per_lane.flatten(-2)[..., : self.count].cpu()
