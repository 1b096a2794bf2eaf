"""Token streams divided into B lanes, contiguous slices that are read side by side, and into segments of L predictions.

A position in a stream is an epoch and the number of a segment in it. A segment is a function of its position, so
training can resume anywhere. Axes: B lanes, L segment.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txlcli.core.reading.scoring import Tokens
from txlcli.errors import TrainingError


def lane_length(tokens: int, batch_size: int) -> int:
    """Return the predictions of each lane in an epoch of a training split."""
    return (tokens - 1) // batch_size


def segments_per_epoch(lane_len: int, seg_len: int) -> int:
    """Return the steps of an epoch; the last may be shorter than L."""
    return -(-lane_len // seg_len)


@dataclass(frozen=True)
class StreamPosition:
    """Position of training in its text: epoch, and segment within the epoch, both from 0."""

    epoch: int = 0
    segment: int = 0


class TrainingSegments:
    """Segments of the training split; tokens at its end that do not fill the lanes evenly are left out.

    Args:
        ids: the split, (N,), in memory or memory-mapped.
        batch_size: B.
        seg_len: L.
        sentence_starts: if given, every epoch reads the sentences in a new order.
        roll: begin every epoch at random tokens of the lanes; not with `sentence_starts`.
        seed: of these orders and tokens.
    """

    def __init__(
        self,
        ids: Tokens,
        *,
        batch_size: int,
        seg_len: int,
        sentence_starts: Tokens | None = None,
        roll: bool = False,
        seed: int = 0,
    ) -> None:
        self._ids, self._batch_size, self._seg_len = ids, batch_size, seg_len
        self._starts, self._roll, self._seed = sentence_starts, roll, seed
        self._order: _SentenceOrder | None = None
        self.lane_len = lane_length(len(ids), batch_size)
        """Predictions of a lane in an epoch."""
        if self.lane_len < 1:
            raise TrainingError(
                f"the training split has {len(ids):,} tokens, too few for train.batch_size = {batch_size:,}; "
                "lower that setting or prepare a longer text"
            )

    @property
    def per_epoch(self) -> int:
        """Segments in one epoch; the last may be shorter than L."""
        return segments_per_epoch(self.lane_len, self._seg_len)

    def next_position(self, position: StreamPosition) -> StreamPosition:
        """Return the position after `position`."""
        if position.segment + 1 < self.per_epoch:
            return StreamPosition(position.epoch, position.segment + 1)
        return StreamPosition(position.epoch + 1, 0)

    def at(self, position: StreamPosition, lanes: range | None = None) -> NDArray[np.int64]:
        """Return the tokens at a position, (B, L + 1): all but the last are inputs, all but the first are targets."""
        first = position.segment * self._seg_len
        length = min(self._seg_len, self.lane_len - first)
        lanes = range(self._batch_size) if lanes is None else lanes
        if self._roll:
            starts = np.random.default_rng((self._seed, position.epoch)).integers(self.lane_len, size=self._batch_size)
            windows = [self._rolled_window(lane, int(starts[lane]) + first, length + 1) for lane in lanes]
        else:
            windows = [self._window(position.epoch, lane * self.lane_len + first, length + 1) for lane in lanes]
        return np.stack(windows).astype(np.int64)

    def _rolled_window(self, lane: int, first: int, count: int) -> Tokens:
        """Return tokens of a lane, whose first token follows its last one."""
        own = self._ids[lane * self.lane_len : (lane + 1) * self.lane_len]
        head = own[first % self.lane_len :][:count]
        return np.concatenate([head, own[: count - len(head)]])

    def _window(self, epoch: int, first: int, count: int) -> Tokens:
        if self._starts is None:
            return self._ids[first : first + count]
        if self._order is None or self._order.epoch != epoch:
            self._order = _SentenceOrder(self._starts, len(self._ids), epoch, self._seed)
        return self._order.window(self._ids, first, count)


class _SentenceOrder:
    """Order of the sentences in one epoch: the reordered stream can be read from any position."""

    def __init__(self, starts: Tokens, total: int, epoch: int, seed: int) -> None:
        self.epoch, self._starts = epoch, starts
        self._order = np.arange(len(starts), dtype=np.uint32)  # 32 bits suffice for tens of millions
        np.random.default_rng((seed, epoch)).shuffle(self._order)
        lengths = np.diff(starts.astype(np.int64), append=total)
        self._ends = np.cumsum(lengths[self._order])  # of the sentences in the reordered stream

    def window(self, ids: Tokens, first: int, count: int) -> Tokens:
        parts = []
        sentence = int(np.searchsorted(self._ends, first, side="right"))
        while count > 0:
            begin = int(self._ends[sentence - 1]) if sentence else 0
            taken = min(int(self._ends[sentence]) - first, count)
            source = int(self._starts[self._order[sentence]]) + first - begin
            parts.append(ids[source : source + taken])
            first, count, sentence = first + taken, count - taken, sentence + 1
        return np.concatenate(parts)
