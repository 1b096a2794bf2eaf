"""The loss of every token of a split, at a given segment and memory length.

Axes: B lanes, L segment, T tokens scored.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from txlcli.core.architectures import make_reader
from txlcli.core.decoding import key_limit
from txlcli.core.language_model import LanguageModel
from txlcli.core.segments import Tokens
from txlcli.settings import EvalSettings


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


def score(
    model: LanguageModel,
    inputs: Tokens,
    targets: Tokens,
    how: EvalSettings,
    *,
    precision: str = "fp32",
    on_tokens: Callable[[int], None] | None = None,
) -> Scores:
    """Score every target once, given all inputs up to it that memory and segment hold.

    The lanes are contiguous pieces of the stream; the first input of a lane is the last target of the piece before,
    so that no token is lost.

    Args:
        model: in any mode; it is left in evaluation mode.
        inputs: (T,) tokens read.
        targets: (T,) tokens predicted; target t follows input t.
        how: L, M, B, the limits on distance.
        precision: number format of matrix products.
        on_tokens: called with the number of tokens scored so far.
    """
    count = len(targets)
    lanes = min(how.batch_size, count)
    lane_len = -(-count // lanes)
    lanes = -(-count // lane_len)  # a short stream may fill fewer lanes than were asked for
    decoder = make_reader(
        model,
        lanes=lanes,
        mem_len=how.mem_len,
        seg_len=min(how.seg_len, lane_len),
        same_length=how.same_length,
        max_distance=how.max_distance,
        precision=precision,
    )
    read, wanted = (in_lanes(tokens, lanes, lane_len, decoder.device) for tokens in (inputs, targets))
    losses = torch.empty(lanes, lane_len, device=decoder.device)
    started = time.perf_counter()
    for first in range(0, lane_len, how.seg_len):
        part = slice(first, first + how.seg_len)
        losses[:, part] = decoder.losses(decoder.read(read[:, part]), wanted[:, part])
        if on_tokens:
            on_tokens(min((first + how.seg_len) * lanes, count))
    in_order = losses.flatten()[:count].cpu().numpy()  # waits for the device
    return Scores(in_order, time.perf_counter() - started, lanes)


def in_lanes(tokens: Tokens, lanes: int, lane_len: int, device: torch.device) -> torch.Tensor:
    """(T,) -> (B, ceil(T / B)); the last lane is filled up with tokens whose losses are dropped."""
    padded = np.zeros(lanes * lane_len, dtype=np.int64)
    padded[: len(tokens)] = tokens
    return torch.from_numpy(padded.reshape(lanes, lane_len)).to(device)
