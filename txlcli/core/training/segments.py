"""Token streams cut into segments of L predictions in B lanes, in reading order.

A place in a stream is an epoch and the number of a segment in it; a segment is a function of its place, so training
resumes anywhere. Axes: B lanes, L segment.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from txlcli.errors import TrainingError

Tokens = NDArray[np.integer]


def scored_stream(ids: Tokens, boundary: int | None, count: int | None = None) -> tuple[Tokens, Tokens]:
    """What is read and what is predicted, (T,) each, for scoring a split.

    With a boundary the stream begins with an implied one and every token is predicted; without, the first token has no
    context and is only read.

    Args:
        ids: the split, (N,).
        boundary: the token that ends a line or sentence, None for bytes and characters.
        count: predict at most this many tokens, from the head.
    """
    head = ids if count is None else ids[: count + (boundary is None)]
    tokens = head.astype(np.int64)
    if boundary is None:
        return tokens[:-1], tokens[1:]
    return np.concatenate([np.array([boundary], dtype=np.int64), tokens[:-1]]), tokens


def lane_length(tokens: int, batch_size: int) -> int:
    """Predictions of each lane in an epoch of a training split."""
    return (tokens - 1) // batch_size


def segments_per_epoch(lane_len: int, seg_len: int) -> int:
    """Steps of an epoch; the last may be shorter than L."""
    return -(-lane_len // seg_len)


@dataclass(frozen=True)
class StreamPosition:
    """Where training is in its text: epoch, and segment within the epoch, both from 0."""

    epoch: int = 0
    segment: int = 0


class TrainingSegments:
    """Lanes as contiguous slices of the training split; the remainder that fills no lane is left out.

    Args:
        ids: the split, (N,), in memory or mapped.
        batch_size: B.
        seg_len: L.
        sentence_starts: with it, every epoch reads the sentences in a new order.
        seed: decides these orders.

    Raises:
        TrainingError: the split is too short to give every lane one prediction.
    """

    def __init__(
        self, ids: Tokens, *, batch_size: int, seg_len: int, sentence_starts: Tokens | None = None, seed: int = 0
    ) -> None:
        self._ids, self._batch_size, self._seg_len = ids, batch_size, seg_len
        self._starts, self._seed = sentence_starts, seed
        self._order: _SentenceOrder | None = None
        self.lane_len = lane_length(len(ids), batch_size)
        """Predictions of a lane in an epoch."""
        if self.lane_len < 1:
            raise TrainingError(
                f"the training split has {len(ids)} tokens, too few for {batch_size} lanes; "
                "lower train.batch_size or prepare a longer text"
            )

    @property
    def per_epoch(self) -> int:
        """Segments in one epoch; the last may be shorter than L."""
        return segments_per_epoch(self.lane_len, self._seg_len)

    def next_position(self, place: StreamPosition) -> StreamPosition:
        """The place after `place`."""
        if place.segment + 1 < self.per_epoch:
            return StreamPosition(place.epoch, place.segment + 1)
        return StreamPosition(place.epoch + 1, 0)

    def at(self, place: StreamPosition, lanes: range | None = None) -> NDArray[np.int64]:
        """The tokens at a place, (B, L + 1): all but the last are read, all but the first are predicted.

        Args:
            place: in the stream.
            lanes: only these.
        """
        first = place.segment * self._seg_len
        length = min(self._seg_len, self.lane_len - first)
        wanted = range(self._batch_size) if lanes is None else lanes
        windows = [self._window(place.epoch, lane * self.lane_len + first, length + 1) for lane in wanted]
        return np.stack(windows).astype(np.int64)

    def _window(self, epoch: int, first: int, count: int) -> Tokens:
        if self._starts is None:
            return self._ids[first : first + count]
        if self._order is None or self._order.epoch != epoch:
            self._order = _SentenceOrder(self._starts, len(self._ids), epoch, self._seed)
        return self._order.window(self._ids, first, count)


class _SentenceOrder:
    """One epoch's order of the sentences, readable from any position of the reordered stream."""

    def __init__(self, starts: Tokens, total: int, epoch: int, seed: int) -> None:
        self.epoch, self._starts = epoch, starts
        self._order = np.arange(len(starts), dtype=np.uint32)  # tens of millions of sentences: 32 bits each are enough
        np.random.default_rng((seed, epoch)).shuffle(self._order)
        self._ends = np.diff(starts, append=np.int64(total))[self._order]  # of each sentence in the reordered stream
        np.cumsum(self._ends, out=self._ends)

    def window(self, ids: Tokens, first: int, count: int) -> Tokens:
        pieces = []
        sentence = int(np.searchsorted(self._ends, first, side="right"))
        while count > 0:
            begin = int(self._ends[sentence - 1]) if sentence else 0
            taken = min(int(self._ends[sentence]) - first, count)
            source = int(self._starts[self._order[sentence]]) + first - begin
            pieces.append(ids[source : source + taken])
            first, count, sentence = first + taken, count - taken, sentence + 1
        return np.concatenate(pieces)
