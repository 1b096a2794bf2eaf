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
from txlcli.core.training.segments import Tokens


@dataclass(frozen=True)
class Scores:
    """What one reading of a stream gave."""

    losses_nats: NDArray[np.float32]
    """Cross entropy of each target, (T,), in the order of the stream."""
    seconds: float
    """Time of the reading, without the loading of weights."""
    lanes: int
    """Lanes that were read side by side; all but the first start without context."""

    @property
    def total_nats(self) -> float:
        """The sum over all tokens, in float64."""
        return float(self.losses_nats.sum(dtype=np.float64))

    @property
    def ms_per_token(self) -> float:
        """Wall time per scored token, in milliseconds."""
        return 1e3 * self.seconds / len(self.losses_nats)


def attention_span(how: EvalSettings) -> tuple[int, int]:
    """The fewest and the most keys that a query sees once the memory is full."""
    limit = key_limit(how.same_length, how.mem_len)
    if limit is not None:
        return limit, limit
    return how.mem_len + 1, how.mem_len + how.seg_len


def attention_span_in(model: LanguageModel, how: EvalSettings, count: int) -> tuple[int, int]:
    """The same in a text of T tokens: where lanes are shorter than the memory, no query sees more than a lane."""
    fewest, most = attention_span(how)
    if model.memory_starts_full:
        return fewest, most
    lane_len = Lanes.of(count, how).length
    return min(fewest, lane_len), min(most, lane_len)


def keys_seen(how: EvalSettings) -> float:
    """The keys that a query sees on average once the memory is full."""
    return sum(attention_span(how)) / 2


def score(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    how: EvalSettings,
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
        how: L, M, B, the limits on distance.
        precision: number format of matrix products.
        on_tokens: called with the number of tokens scored so far.
        on_segment: called with the last hidden states (B, l, d) of each segment, its targets and losses (B, l);
            the targets may be on the host.
    """
    lanes = Lanes.of(len(targets), how)
    reader = make_reader(model, sized_for(model, how, lanes.length), lanes=lanes.number, precision=precision)
    input_lanes, target_lanes = lanes.cut(inputs, reader.device), lanes.cut(targets, reader.model.targets_device)
    losses = torch.empty(lanes.number, lanes.length, device=reader.device)
    started = time.perf_counter()
    for part in lanes.parts(how.seg_len):
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
    def of(cls, count: int, how: EvalSettings) -> "Lanes":
        """As many as are asked for; a short stream may fill fewer."""
        length = -(-count // min(how.batch_size, count))
        return cls(count=count, number=-(-count // length), length=length)

    def cut(self, tokens: Tokens, device: torch.device) -> Tensor:
        """(T,) -> (B, length); the last lane is filled up with tokens whose losses are dropped."""
        padded = np.zeros(self.number * self.length, dtype=np.int64)
        padded[: len(tokens)] = tokens
        return torch.from_numpy(padded.reshape(self.number, self.length)).to(device)

    def parts(self, seg_len: int) -> Iterator[slice]:
        """The segments of every lane, in order."""
        return (slice(first, min(first + seg_len, self.length)) for first in range(0, self.length, seg_len))

    def join(self, per_lane: Tensor) -> Tensor:
        """(..., B, length) -> (..., T) in memory, in the stream's order."""
        return per_lane.flatten(-2)[..., : self.count].cpu()
