"""Token streams divided into B lanes, contiguous slices that are read side by side, and into segments of L predictions.

A position in a stream is an epoch and the number of a segment in it. A segment is a function of its position, so
training can resume anywhere. Axes: B lanes, L segment, E tokens before it that are read again.
"""

import functools
import mmap
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from txlcli.config.bands import Band
from txlcli.config.train_settings import JITTER_MARGIN, JITTER_STD, TrainSettings
from txlcli.core.reading.scoring import Tokens
from txlcli.errors import StoreError, TrainingError

COUNTED = 5_000_000
"""Tokens in which bands are counted; more do not change the shares noticeably."""
JITTER_MIN = 5
"""Least length of jittered segments, in tokens."""
HALF_LENGTH_PROB = 0.05
"""Probability of a jittered segment of about half the length."""


class StreamPosition(NamedTuple):
    """Position of training in its text: epoch, and segment within the epoch, both from 0."""

    epoch: int = 0
    segment: int = 0


class TrainingSegments:
    """Segments of the training split; tokens at its end that do not fill the lanes evenly are left out.

    Args:
        ids: the split, (N,), in memory or memory-mapped.
        settings: lengths, number of lanes, and the seed of all that is sampled.
        sentence_starts: places in the text where sentences, or documents, begin.
        shuffles: read the sentences in a new order in every epoch.
    """

    def __init__(
        self,
        ids: Tokens,
        settings: TrainSettings,
        sentence_starts: Tokens | None = None,
        *,
        shuffles: bool = True,
    ) -> None:
        self.ids = ids
        self._settings = settings
        self._sentence_starts = sentence_starts
        self._shuffles = shuffles
        self._shuffled_epoch: int | None = None
        self.lane_len = (len(ids) - 1) // settings.batch_size
        """Predictions of a lane in an epoch."""
        if self.lane_len < 1:
            raise TrainingError(
                f"the training split has {len(ids):,} tokens, too few for train.batch_size = "
                f"{settings.batch_size:,}; lower that setting or prepare a longer text"
            )

    def segments_in(self, epoch: int) -> int:
        """Return the number of segments of an epoch, which differs between epochs with jitter."""
        return len(self._edges(epoch)) - 1

    def next_position(self, position: StreamPosition) -> StreamPosition:
        """Return the position after `position`."""
        epoch, segment = position
        if segment + 1 == self.segments_in(epoch):
            return StreamPosition(epoch + 1)
        return StreamPosition(epoch, segment + 1)

    def _edges(self, epoch: int) -> range | NDArray[np.int64]:
        """Return the first prediction of each segment of a lane, and the end of the last one, maybe beyond the lane."""
        settings = self._settings
        if settings.seg_len_jitter:
            return jittered_edges(self.lane_len, settings.seg_len, (settings.seed, epoch, settings.seg_len))
        return range(0, self.lane_len + settings.seg_len, settings.seg_len)

    def sampled_length(self, position: StreamPosition) -> int:
        """Return the length that was sampled for a segment, of which the end of the lane may leave less."""
        first, end = self._edges(position.epoch)[position.segment :][:2]
        return int(end - first)

    def range_of(self, position: StreamPosition) -> range:
        """Return the predictions of a lane that a segment makes."""
        first, end = self._edges(position.epoch)[position.segment :][:2]
        return range(int(first), min(int(end), self.lane_len))

    def at(self, position: StreamPosition, lanes: slice = slice(None)) -> NDArray[np.int64]:
        """Return the tokens at a position, (B, E + L + 1): all but the last are inputs, the last L are targets.

        The E tokens before the segment are fewer at the beginning of an epoch.
        """
        _check_complete(self.ids)
        first, in_lane = self._places(position, lanes)
        numbers = first + in_lane
        starts = self._sentence_starts
        if starts is not None and self._shuffles:
            sentence, begin = self._sentences(starts, numbers, position.epoch)
            numbers = starts[sentence].astype(np.int64) + numbers - begin
        return self.ids[numbers].astype(np.int64)

    def since_reset(self, position: StreamPosition, lanes: slice = slice(None)) -> NDArray[np.int64]:
        """Return how many tokens were read since the memory began anew, before each input at a position, (B, E + L).

        It begins anew with the token before a sentence, from which the first one of the sentence is predicted, and with
        the last token of a lane, which a rolled one reads before its first.
        """
        assert self._sentence_starts is not None
        first, in_lane = self._places(position, lanes)
        predicted = in_lane[:, 1:]
        numbers = first + predicted
        _, begin = self._sentences(self._sentence_starts, numbers, position.epoch)
        return np.minimum(numbers - begin, predicted)

    def _places(self, position: StreamPosition, lanes: slice) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first token of each lane, (B, 1), and the places in it of the tokens at a position, (B, E+L+1)."""
        settings = self._settings
        segment = self.range_of(position)
        first = np.arange(settings.batch_size)[:, None] * self.lane_len
        at = np.arange(max(0, segment.start - settings.reread_len), segment.stop + 1)[None]
        if settings.roll_lanes:  # the first token of a lane follows its last one
            chance = np.random.default_rng((settings.seed, position.epoch))
            at = (at + chance.integers(self.lane_len, size=first.shape)) % self.lane_len
        return first[lanes], np.broadcast_to(at, (settings.batch_size, at.shape[1]))[lanes]

    def _sentences(
        self, starts: Tokens, numbers: NDArray[np.int64], epoch: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the sentence of each token of an epoch's stream, as its number in the text, and the number of its
        first token in the stream."""
        if not self._shuffles:
            sentence = np.searchsorted(starts, numbers.astype(starts.dtype), side="right") - 1
            return sentence, starts[sentence].astype(np.int64)
        if self._shuffled_epoch != epoch:
            self._order = np.arange(len(starts), dtype=np.uint32)  # 32 bits suffice for tens of millions
            np.random.default_rng((self._settings.seed, epoch)).shuffle(self._order)
            lengths = np.diff(starts.astype(np.int64), append=len(self.ids))
            self._ends = np.cumsum(lengths[self._order])  # of the sentences in the reordered stream
            self._shuffled_epoch = epoch
        place = np.searchsorted(self._ends, numbers, side="right")
        begin = np.where(place > 0, self._ends[place - 1], 0)
        return self._order[place].astype(np.int64), begin


@functools.lru_cache(maxsize=2)
def jittered_edges(lane_len: int, seg_len: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the first token of each segment of sampled length in a lane, and the end of the last one.

    The last one may end beyond the lane.
    """
    chance = np.random.default_rng(seed)
    least = min(JITTER_MIN, seg_len)
    count = lane_len // least + 1
    is_half = chance.random(count) < HALF_LENGTH_PROB
    means = np.where(is_half, seg_len / 2, seg_len)
    lengths = chance.normal(means, JITTER_STD).astype(np.int64).clip(least, seg_len + JITTER_MARGIN)
    ends = lengths.cumsum()
    last = np.searchsorted(ends, lane_len)
    return np.concatenate([[0], ends[: last + 1]])


def band_shares(all_bands: Sequence[Band], ids: Tokens) -> list[float]:
    """Return the shares of the bands in the first tokens of a text."""
    edges = [band.first for band in all_bands]
    edges.append(all_bands[-1].end)
    counts, _ = np.histogram(ids[:COUNTED], edges)
    total = max(counts.sum(), 1)
    return [float(count) / total for count in counts]


def _check_complete(ids: Tokens) -> None:
    """Reject a memory map whose file was truncated: reading beyond its end would end the process by a signal."""
    if not (isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap)):
        return
    if ids.base.size() < ids.offset + ids.nbytes:
        raise StoreError(f"{ids.filename} was truncated during training; prepare it again, and resume")
