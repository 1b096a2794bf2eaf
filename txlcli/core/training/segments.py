"""Token streams divided into B lanes, contiguous slices that are read side by side, and into segments of L predictions.

A position in a stream is an epoch and the number of a segment in it. A segment is a function of its position, so
training can resume anywhere. Axes: B lanes, L segment, E tokens before it that are read again.
"""

import functools
import mmap
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np
from numpy.typing import NDArray

from txlcli.config.bands import Band
from txlcli.config.settings import JITTER_MARGIN, JITTER_STD, TrainSettings
from txlcli.core.reading.scoring import Tokens
from txlcli.errors import StoreError, TrainingError

COUNTED = 5_000_000
"""Tokens in which bands are counted; more do not change the shares noticeably."""
JITTER_MIN, SHARE_OF_HALVES = 5, 0.05
"""Least length of jittered segments, in tokens, and the share of those of half the length."""


@dataclass(frozen=True)
class StreamPosition:
    """Position of training in its text: epoch, and segment within the epoch, both from 0."""

    epoch: int = 0
    segment: int = 0


@dataclass(kw_only=True)
class TrainingSegments:
    """Segments of the training split; tokens at its end that do not fill the lanes evenly are left out."""

    ids: Tokens = field(kw_only=False)
    """The split, (N,), in memory or memory-mapped."""
    batch_size: int
    seg_len: int
    reread_len: int = 0
    """E."""
    jitter: bool = False
    """Sample the lengths of segments (AWD-LSTM): 95 % from N(L, 5), the others from N(L / 2, 5)."""
    sentence_starts: Tokens | None = None
    """If given, every epoch reads the sentences in a new order."""
    roll: bool = False
    """Begin every epoch at random tokens of the lanes; not with `sentence_starts`."""
    seed: int = 0
    """Of these orders, tokens and lengths."""

    @classmethod
    def of(cls, ids: Tokens, train: TrainSettings, sentence_starts: Tokens | None = None) -> Self:
        """Return the segments of these settings; see the fields."""
        return cls(
            ids,
            batch_size=train.batch_size,
            seg_len=train.seg_len,
            reread_len=train.reread_len,
            jitter=train.seg_len_jitter,
            sentence_starts=sentence_starts,
            roll=train.roll_lanes,
            seed=train.seed,
        )

    def __post_init__(self) -> None:
        """Check that there is a token for every lane."""
        self._shuffled_epoch: int | None = None
        self.lane_len = (len(self.ids) - 1) // self.batch_size
        """Predictions of a lane in an epoch."""
        if self.lane_len < 1:
            raise TrainingError(
                f"the training split has {len(self.ids):,} tokens, too few for train.batch_size = "
                f"{self.batch_size:,}; lower that setting or prepare a longer text"
            )

    @property
    def per_epoch(self) -> int:
        """Segments in the first epoch; the last may be shorter than L."""
        return self.segments_in(0)

    def segments_in(self, epoch: int) -> int:
        """Return the number of segments of an epoch, which differs between epochs with jitter."""
        return len(self._edges(epoch)) - 1 if self.jitter else -(-self.lane_len // self.seg_len)

    def next_position(self, position: StreamPosition) -> StreamPosition:
        """Return the position after `position`."""
        if position.segment + 1 < self.segments_in(position.epoch):
            return StreamPosition(position.epoch, position.segment + 1)
        return StreamPosition(position.epoch + 1, 0)

    def _edges(self, epoch: int) -> NDArray[np.int64]:
        return jittered_edges(self.lane_len, self.seg_len, (self.seed, epoch, self.seg_len))

    def range_of(self, position: StreamPosition) -> range:
        """Return the predictions of a lane that a segment makes."""
        if self.jitter:
            return range(*self._edges(position.epoch)[position.segment :][:2].tolist())
        first = position.segment * self.seg_len
        return range(first, min(first + self.seg_len, self.lane_len))

    def at(self, position: StreamPosition, lanes: range | None = None) -> NDArray[np.int64]:
        """Return the tokens at a position, (B, E + L + 1): all but the last are inputs, the last L are targets.

        The E tokens before the segment are fewer at the beginning of an epoch.
        """
        _check_complete(self.ids)
        segment = self.range_of(position)
        first = max(0, segment.start - self.reread_len)
        count = segment.stop - first + 1
        lanes = range(self.batch_size) if lanes is None else lanes
        if self.roll:
            starts = np.random.default_rng((self.seed, position.epoch)).integers(self.lane_len, size=self.batch_size)
            windows = [self._rolled_window(lane, int(starts[lane]) + first, count) for lane in lanes]
        else:
            windows = [self._window(position.epoch, lane * self.lane_len + first, count) for lane in lanes]
        return np.stack(windows).astype(np.int64)

    def _rolled_window(self, lane: int, first: int, count: int) -> Tokens:
        """Return tokens of a lane, whose first token follows its last one."""
        own = self.ids[lane * self.lane_len : (lane + 1) * self.lane_len]
        head = own[first % self.lane_len :][:count]
        return np.concatenate([head, own[: count - len(head)]])

    def _window(self, epoch: int, first: int, count: int) -> Tokens:
        """Return tokens of the stream of an epoch, which can be read from any position."""
        if self.sentence_starts is None:
            return self.ids[first : first + count]
        if self._shuffled_epoch != epoch:
            self._shuffle_sentences(self.sentence_starts, epoch)
        parts = []
        sentence = int(np.searchsorted(self._ends, first, side="right"))
        while count > 0:
            begin = int(self._ends[sentence - 1]) if sentence else 0
            taken = min(int(self._ends[sentence]) - first, count)
            source = int(self.sentence_starts[self._order[sentence]]) + first - begin
            parts.append(self.ids[source : source + taken])
            first, count, sentence = first + taken, count - taken, sentence + 1
        return np.concatenate(parts)

    def _shuffle_sentences(self, starts: Tokens, epoch: int) -> None:
        self._order = np.arange(len(starts), dtype=np.uint32)  # 32 bits suffice for tens of millions
        np.random.default_rng((self.seed, epoch)).shuffle(self._order)
        lengths = np.diff(starts.astype(np.int64), append=len(self.ids))
        self._ends = np.cumsum(lengths[self._order])  # of the sentences in the reordered stream
        self._shuffled_epoch = epoch


@functools.lru_cache(maxsize=2)
def jittered_edges(lane_len: int, seg_len: int, seed: tuple[int, ...]) -> NDArray[np.int64]:
    """Return the first token of each segment of sampled length in a lane, and the end of the last one."""
    chance, least = np.random.default_rng(seed), min(JITTER_MIN, seg_len)
    count = lane_len // least + 1
    means = np.where(chance.random(count) < SHARE_OF_HALVES, seg_len / 2, seg_len)
    lengths = chance.normal(means, JITTER_STD).astype(np.int64).clip(least, seg_len + JITTER_MARGIN)
    ends = lengths.cumsum()
    return np.minimum([0, *ends[: np.searchsorted(ends, lane_len) + 1]], lane_len)


def band_shares(all_bands: Sequence[Band], ids: Tokens) -> list[float]:
    """Return the shares of the bands in the first tokens of a text."""
    counts = np.histogram(ids[:COUNTED], [*(band.first for band in all_bands), all_bands[-1].end])[0]
    return [float(count) / max(counts.sum(), 1) for count in counts]


def _check_complete(ids: Tokens) -> None:
    """Reject a memory map whose file was truncated: reading beyond its end would end the process by a signal."""
    if isinstance(ids, np.memmap) and isinstance(ids.base, mmap.mmap) and ids.base.size() < ids.offset + ids.nbytes:
        raise StoreError(f"{ids.filename} was truncated during training; prepare it again, and resume")
