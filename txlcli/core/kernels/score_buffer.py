"""Buffers of attention scores by distance, which can be read by key without a copy (the efficient form of Appendix B).

Axes: L segment, K = M + L keys, D head width, n distances scored, m of them with a position key.

The position score of a query depends only on its distance to a key, so it is computed against distances. A row of a
ScoreBuffer has K + L - 1 columns: column c < K scores distance K - 1 - c, the last L - 1 columns stand for
negative distances (the future) and hold -inf. Read with a row stride that is one shorter, starting at column L - 1, the
same memory is the (L, K) score of every key: shifted and causally masked without a copy, a pad or a mask tensor.

A view of a buffer serves some queries of a segment and the keys up to the last of them: it is the end of the buffer,
where distance 0 is.
"""

import copy
from typing import NamedTuple

import torch
from torch import Tensor

HALF_DTYPES = (torch.bfloat16, torch.float16)


class ScoreShape(NamedTuple):
    """Sizes of the scores in a buffer."""

    rows: int
    """Pairs of a sequence and a head: batch size times heads."""
    seg_len: int
    """L."""
    key_len: int
    """K."""
    reach: int
    """n."""


class ScoreBuffer:
    """Scores by distance, padded so that the same memory can be read by key.

    Args:
        like: gives dtype and device.
        shape: of the scores.
        fill: value of columns that no product writes, such as distances n and more: -inf for scores, 0 for gradients.
    """

    def __init__(self, like: Tensor, shape: ScoreShape, *, fill: float) -> None:
        self.fill = fill
        self.purpose = (shape, like.dtype, like.device)
        """A buffer can be used again for the same fill and purpose only."""
        rows, seg_len, key_len, reach = shape
        width = key_len + seg_len - 1
        columns = torch.full((rows, seg_len, width), fill, dtype=like.dtype, device=like.device)
        self.by_distance = columns[:, :, key_len - reach : key_len]  # (rows, L, n)
        strides = (seg_len * width, max(width - 1, 1), 1)
        self.by_key = columns.as_strided((rows, seg_len, key_len), strides, seg_len - 1)  # (rows, L, K)
        self._stale_columns = 0  # first columns of by_distance that may hold values of another view, outside by_key

    def view(self, seg_len: int, key_len: int) -> "ScoreBuffer":
        """Return a buffer for fewer queries and keys in the same memory."""
        if (seg_len, key_len) == self.by_key.shape[1:]:
            return self
        view = copy.copy(self)
        view.by_distance = self.by_distance[:, -seg_len:, -key_len:]
        view.by_key = self.by_key[:, -seg_len:, -key_len:]
        view._stale_columns = max(0, seg_len - 1 - (key_len - view.by_distance.shape[2]))
        return view

    def write_by_key(self, scores: Tensor) -> None:
        """Write scores (rows, L, K) by key; `by_distance` then holds them and zeros."""
        self.by_distance[:, :, : self._stale_columns] = 0.0
        self.by_key.copy_(scores)

    def multiply(self, query: Tensor, position_key: Tensor, bias: Tensor | None, scratch: Tensor) -> None:
        """Score queries (rows, L, D) against position keys (rows, m, D); farther distances share the score of row 0.

        Args:
            query: (rows, L, D).
            position_key: (rows, m, D).
            bias: added to the score of each distance, (rows, 1, m).
            scratch: (rows, L, K), contiguous, overwritten: on a CPU, products that write rows with gaps are slow.
        """
        rows, seg_len, reach = self.by_distance.shape
        count = position_key.shape[1]
        shared = reach - count  # columns without a position key
        scores = scratch.view(-1)[: rows * seg_len * count].view(rows, seg_len, count)
        if bias is None:
            torch.bmm(query, position_key.mT, out=scores)
        else:
            torch.baddbmm(bias, query, position_key.mT, out=scores)
        self.by_distance[:, :, shared:] = scores
        if shared:
            self.by_distance[:, :, :shared] = scores[:, :, :1]


CACHE_BYTES = 4 << 20
"""Scores that stay in a CPU's cache while they are used (measured: more is slower, less is no faster)."""
MIN_QUERIES = 128
"""Smaller blocks of queries gain nothing on a CPU (measured)."""


class ScoreBuffers:
    """Score buffers of a model, reused by all layers and segments: to allocate and fill one takes time.

    No use overwrites the padding. On CUDA no buffer is kept: the whole batch is scored at once, so that buffers are
    large, and filling them is fast.
    """

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, min_queries: int = MIN_QUERIES) -> None:
        self._idle: dict[float, ScoreBuffer] = {}  # the last released buffer of each fill
        self.cache_bytes = cache_bytes
        """Largest size of the scores that are computed together on a CPU."""
        self.min_queries = min_queries
        """Smallest block of queries into which a segment is divided on a CPU."""

    def __deepcopy__(self, memo: dict[int, object]) -> "ScoreBuffers":
        return ScoreBuffers(cache_bytes=self.cache_bytes, min_queries=self.min_queries)

    def acquire(self, like: Tensor, shape: ScoreShape, *, fill: float) -> ScoreBuffer:
        """Return a buffer that has no other user until it is released; see `ScoreBuffer`."""
        idle = self._idle.pop(fill, None)
        if idle is not None and idle.purpose == (shape, like.dtype, like.device):
            return idle
        with torch.inference_mode(False):  # training may use it later
            return ScoreBuffer(like, shape, fill=fill)

    def release(self, buffer: ScoreBuffer) -> None:
        """Make a buffer available to the next request."""
        if buffer.by_distance.device.type == "cpu":
            self._idle[buffer.fill] = buffer
