"""Extrapolates the bytes that a training step keeps from small sizes to large ones, exactly.

Axes: B batch, L segment, M memory, K = M + L keys, N layers, W window.
"""

import itertools
from collections.abc import Callable
from typing import NamedTuple

Count = Callable[[int], int]
"""Bytes by a size."""
SMALL_WIDTH = 500
"""Columns of the smaller softmax from which larger ones are extrapolated."""
COUNTED_ELEMENTS = 1 << 22
"""Most elements of logits, and of the scores of one head, of a layer whose count takes longer to extrapolate."""
COUNTED_LAYERS = 5
"""Layers that take as long to count as those from which more are extrapolated."""
COUNTED_LENGTH = 1024
"""Longest segment and memory, in tokens, whose activations are counted without extrapolation."""
SHORT_LENGTH = 64
"""Unit of the segments and memories from which longer ones are extrapolated, in tokens."""


class Sizes(NamedTuple):
    """Sizes on which the activations of a step depend."""

    seg_len: int
    """L."""
    mem_len: int
    """M."""
    batch_size: int
    """B of a micro-batch."""
    n_layers: int
    """N."""
    width: int
    """Columns of the softmax."""
    window: int | None = None
    """W, if it is less than M + L."""


SizedCount = Callable[[Sizes], int]
"""Bytes, or scores, by sizes."""


def at_lengths(count: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from small batches, numbers of layers and widths of the softmax: it is linear in each.

    A batch of one may be read in place where a larger one is copied; the first and the last layer may differ from those
    between. Small sizes are counted as they are.
    """
    row = max(sizes.width, sizes.mem_len + sizes.seg_len)
    if sizes.batch_size * sizes.seg_len * row <= COUNTED_ELEMENTS:
        if sizes.n_layers <= COUNTED_LAYERS:
            return count(sizes)
        return linear(lambda n_layers: count(sizes._replace(n_layers=n_layers)), sizes.n_layers, (2, 3))

    def by_batch_size(batch_size: int) -> int:
        return linear(lambda n_layers: by_layers(batch_size, n_layers), sizes.n_layers, (2, 3))

    def by_layers(batch_size: int, n_layers: int) -> int:
        small = sizes._replace(batch_size=batch_size, n_layers=n_layers)
        return linear(lambda width: count(small._replace(width=width)), sizes.width, (SMALL_WIDTH, 2 * SMALL_WIDTH))

    return linear(by_batch_size, sizes.batch_size, (2, 3))


def beyond_lengths(count: SizedCount, skipped: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from short segments and memories, too.

    Args:
        count: bytes of the activations.
        skipped: scores of one head that blocks of queries leave out, in all sequences and layers.
        sizes: where to count.
    """
    windowed = sizes._replace(width=min(sizes.width, SMALL_WIDTH))
    narrow = windowed._replace(window=None)
    total = _if_nothing_is_skipped(count, narrow)
    if skipped(narrow):
        small = narrow._replace(batch_size=min(sizes.batch_size, 2), n_layers=min(sizes.n_layers, 2))
        lengths = (SHORT_LENGTH << power for power in itertools.count(2))
        longer = (small._replace(seg_len=length, mem_len=min(length, sizes.mem_len)) for length in lengths)
        divided = next(at for at in longer if skipped(at))
        left_out = _if_nothing_is_skipped(count, divided) - count(divided)
        total -= left_out * skipped(narrow) // skipped(divided)
    return total + _logits_beyond(count, narrow, width=sizes.width) - _left_out_by_window(count, windowed)


def _left_out_by_window(count: SizedCount, sizes: Sizes) -> int:
    """Extrapolate how many bytes of distances a window saves: it is linear in the distances left out, and in L."""
    if sizes.window is None:
        return 0
    unit, fewer = SHORT_LENGTH, SHORT_LENGTH // 2

    def of_fewer(segments: int) -> int:
        at = sizes._replace(seg_len=segments * unit, mem_len=min(sizes.mem_len, unit), window=None)
        window = at.seg_len + at.mem_len - fewer
        return at_lengths(count, at) - at_lengths(count, at._replace(window=window))

    first, second = of_fewer(1), of_fewer(2)
    left_out = sizes.mem_len + sizes.seg_len - sizes.window
    return left_out * (first * unit + (second - first) * (sizes.seg_len - unit)) // (fewer * unit)


def _if_nothing_is_skipped(count: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from lengths so short that all scores are computed: it is linear in 1, L, M and L K."""
    unit, seg_len, mem_len = SHORT_LENGTH, sizes.seg_len, sizes.mem_len

    def at(segments: int, memories: int) -> int:
        return at_lengths(count, sizes._replace(seg_len=segments * unit, mem_len=memories * unit))

    # Of lengths in units: constant + segment L + memory M + pair L (M + L).
    if mem_len:
        first = at(1, 1)
        pair = at(2, 2) - at(2, 1) - at(1, 2) + first
        memory = at(1, 2) - first - pair
        segment = at(2, 1) - first - 4 * pair
        constant = first - segment - memory - 2 * pair
    else:
        first, memory = at(1, 0), 0
        pair = (at(3, 0) - 2 * at(2, 0) + first) // 2
        segment = at(2, 0) - first - 3 * pair
        constant = first - segment - pair
    return constant + ((segment * seg_len + memory * mem_len) * unit + pair * seg_len * (mem_len + seg_len)) // unit**2


def _logits_beyond(count: SizedCount, sizes: Sizes, *, width: int) -> int:
    """Return how many more bytes a wider softmax saves: logits of B L tokens and, under autocast, casts of weights."""
    if width <= sizes.width:
        return 0

    def by_seg_len(seg_len: int) -> int:
        short = sizes._replace(seg_len=seg_len, mem_len=min(SHORT_LENGTH, sizes.mem_len))
        return at_lengths(lambda at: count(at._replace(width=2 * SMALL_WIDTH)) - count(at), short)

    of_small = linear(by_seg_len, sizes.seg_len, (SHORT_LENGTH, 2 * SHORT_LENGTH))
    return of_small * (width - sizes.width) // SMALL_WIDTH


def linear(count: Count, size: int, between: tuple[int, int]) -> int:
    """Return the count at a size, extrapolated from two smaller sizes if it is beyond them."""
    first, second = between
    if size <= second:
        return count(size)
    smaller, larger = count(first), count(second)
    return smaller + (larger - smaller) * (size - first) // (second - first)
