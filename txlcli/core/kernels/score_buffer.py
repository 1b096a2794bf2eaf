"""Buffers of attention scores by distance, which can be read by key without a copy (the efficient form of Appendix B).

Axes: L segment, K = M + L keys, D head width, n distances scored, m of them with a position key.

The position score of a query depends only on its distance to a key, so it is computed against distances. A row of a
PaddedScoreBuffer has K + L - 1 columns: column c < K scores distance K - 1 - c, the last L - 1 columns stand for
negative distances (the future) and hold -inf. Read with a row stride that is one shorter, starting at column L - 1, the
same memory is the (L, K) score of every key: shifted and causally masked without a copy, a pad or a mask tensor.

On a CPU, a batch of fp32 products is fast only if it writes contiguous rows, and so is one of single queries in 16
bits. For these, a DenseScoreBuffer holds nothing but the distances, and a mask hides the entries that have no meaning
by key.

A view of a buffer serves some queries of a segment and the keys up to the last of them. A view of a PaddedScoreBuffer
is its end, where distance 0 is; a view of a DenseScoreBuffer arranges the same memory in shorter rows.
"""

import copy
import math
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from txlcli.core.kernels.device import setting

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
    position_keys: int
    """m; the n - m farther distances share the score of the farthest one with a position key."""


class PaddedScoreBuffer:
    """Scores by distance, padded so that the same memory can be read by key.

    Args:
        like: gives dtype and device.
        shape: of the scores; products write the columns of its m position keys.
        fill: value of columns that no product writes, such as distances n and more: -inf for scores, 0 for gradients.
    """

    request: "Request | None" = None
    """The buffer can be reused for an equal request only."""

    def __init__(self, like: Tensor, shape: ScoreShape, *, fill: float) -> None:
        rows, seg_len, key_len, reach, _ = shape
        width = key_len + seg_len - 1
        columns = torch.full((rows, seg_len, width), fill, dtype=like.dtype, device=like.device)
        self.by_distance = columns[:, :, key_len - reach : key_len]  # (rows, L, n)
        self.by_key = columns.as_strided(  # (rows, L, K)
            (rows, seg_len, key_len), (seg_len * width, max(width - 1, 1), 1), seg_len - 1
        )
        self._stale_columns = 0  # first columns of by_distance that may hold values of another view, outside by_key

    def view(self, seg_len: int, key_len: int) -> "PaddedScoreBuffer":
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

    def multiply(self, query: Tensor, position_key: Tensor) -> None:
        """Score queries (rows, L, D) against position keys (rows, m, D); farther distances share the score of row 0."""
        shared = self.by_distance.shape[2] - position_key.shape[1]  # columns without a position key
        torch.bmm(query, position_key.mT, out=self.by_distance[:, :, shared:])
        if shared:
            self.by_distance[:, :, :shared] = self.by_distance[:, :, shared : shared + 1]

    def masked_by_key(self, out: Tensor) -> Tensor:
        """Return position scores by key (rows, L, K), -inf where a query does not see a key; `out` is not used."""
        return self.by_key


class DenseScoreBuffer:
    """Scores by distance in contiguous rows; `by_key` is arbitrary where the mask hides it.

    If m < n, `by_key` holds the last m keys only, and the first L of the m position keys must be equal.

    Args:
        like: gives dtype and device.
        shape: of the scores.
    """

    request: "Request | None" = None
    """The buffer can be reused for an equal request only."""

    def __init__(self, like: Tensor, shape: ScoreShape) -> None:
        rows, seg_len, key_len, reach, position_keys = shape
        # By key, the first row starts before its own scores: this padding is never written, and the mask hides it.
        self._padding = key_len - reach if position_keys == reach else 0
        self._memory = torch.zeros(self._padding + rows * seg_len * position_keys, dtype=like.dtype, device=like.device)
        query, key = torch.arange(key_len - seg_len, key_len)[:, None], torch.arange(key_len)
        hidden = (query - key < 0) | (query - key >= reach)  # (L, K)
        self._shape = shape
        self.mask = torch.zeros(seg_len, key_len).masked_fill(hidden, -math.inf).to(like)
        self._arrange(seg_len, key_len)

    def _arrange(self, seg_len: int, key_len: int) -> None:
        """Divide the memory into rows for L queries and K keys."""
        rows, _, _, reach, position_keys = self._shape
        width = min(position_keys, key_len)
        in_rows = key_len if position_keys == reach else width  # keys that are read from the rows
        self._keys_sharing_score = key_len - in_rows  # keys beyond the farthest distance with a position key
        self.by_distance = self._memory[self._padding :][: rows * seg_len * width].view(-1, seg_len, width)
        first = self._padding - (in_rows - width) + seg_len - 1
        self.by_key = self._memory.as_strided(  # (rows, L, keys in rows)
            (rows, seg_len, in_rows), (seg_len * width, width - 1, 1), first
        )

    def view(self, seg_len: int, key_len: int) -> "DenseScoreBuffer":
        """Return a buffer for fewer queries and keys in the same memory, which serves one view at a time."""
        if self.mask.shape == (seg_len, key_len):
            return self
        view = copy.copy(self)
        view.mask = self.mask[-seg_len:, -key_len:]
        view._arrange(seg_len, key_len)
        return view

    def multiply(self, query: Tensor, position_key: Tensor) -> None:
        """Score queries (rows, L, D) against position keys (rows, m, D)."""
        torch.bmm(query, position_key.mT, out=self.by_distance)

    def masked_by_key(self, out: Tensor) -> Tensor:
        """Write position scores by key (rows, L, K) to `out` and return it; -inf where a query does not see a key."""
        sharing = self._keys_sharing_score
        if not sharing:
            return torch.add(self.by_key, self.mask, out=out)
        torch.add(self.by_distance[:, :, :1], self.mask[:, :sharing], out=out[:, :, :sharing])
        torch.add(self.by_key, self.mask[:, sharing:], out=out[:, :, sharing:])
        return out


ScoreBuffer = PaddedScoreBuffer | DenseScoreBuffer
Purpose = Literal["scores", "gradients"]
Request = tuple[Purpose, ScoreShape, torch.dtype, torch.device]
"""Shape that `Workspace.acquire` is asked for."""


def _is_dense(like: Tensor, shape: ScoreShape) -> bool:
    """Return True if scores belong into a DenseScoreBuffer."""
    return like.device.type == "cpu" and (like.dtype not in HALF_DTYPES or shape.seg_len == 1)


CACHE_BYTES = 4 << 20
"""Scores that stay in a CPU's cache while they are used (measured: more is slower, less is no faster)."""
MIN_QUERIES = 128
"""Smaller blocks of queries gain nothing on a CPU (measured)."""

_at_once = ContextVar("_at_once", default=False)


def scores_at_once() -> AbstractContextManager[None]:
    """Score the whole batch in one pass inside this block, as on a GPU: to forecast its memory on a CPU."""
    return setting(_at_once, True)


def fits_in_one_tile(device: torch.device) -> bool:
    """Return True if all scores of a call are computed together, as on a GPU."""
    return device.type != "cpu" or _at_once.get()


class Workspace:
    """Score buffers of a model, reused by all layers and segments: to allocate and fill one takes time.

    No use overwrites the padding. On CUDA no buffer is kept: the whole batch is scored at once, so that buffers are
    large, and filling them is fast.
    """

    def __init__(self, *, cache_bytes: int = CACHE_BYTES, min_queries: int = MIN_QUERIES) -> None:
        self._idle: dict[Purpose, ScoreBuffer] = {}  # the last released buffer of each purpose
        self.cache_bytes = cache_bytes
        """Largest size of the scores that are computed together on a CPU."""
        self.min_queries = min_queries
        """Smallest block of queries into which a segment is divided on a CPU."""

    def block_of_queries(self, seg_len: int, row_bytes: int) -> int:
        """Return how many queries of one sequence a CPU scores together: all L if their scores fit into its cache.

        Args:
            seg_len: L.
            row_bytes: size of the scores of one query.
        """
        fitting = max(self.cache_bytes // row_bytes, self.min_queries)
        return math.ceil(seg_len / max(1, seg_len // fitting)) if self.cache_bytes // row_bytes < seg_len else seg_len

    def __deepcopy__(self, memo: dict[int, object]) -> "Workspace":
        return Workspace(cache_bytes=self.cache_bytes, min_queries=self.min_queries)

    def acquire(self, purpose: Purpose, like: Tensor, shape: ScoreShape) -> ScoreBuffer:
        """Return a buffer that has no other user until it is released.

        Args:
            purpose: scores are filled with -inf, gradients with 0.
            like: gives dtype and device.
            shape: of the scores.
        """
        request: Request = (purpose, shape, like.dtype, like.device)
        idle = self._idle.pop(purpose, None)
        if idle is not None and idle.request == request:
            return idle
        with torch.inference_mode(False):  # training may use it later
            buffer: ScoreBuffer
            if purpose == "gradients":
                buffer = PaddedScoreBuffer(like, shape, fill=0.0)
            elif _is_dense(like, shape):
                buffer = DenseScoreBuffer(like, shape)
            else:
                buffer = PaddedScoreBuffer(like, shape, fill=-math.inf)
        buffer.request = request
        return buffer

    def release(self, buffer: ScoreBuffer) -> None:
        """Make a buffer available to the next request."""
        if buffer.by_distance.device.type == "cpu" and buffer.request is not None:
            self._idle[buffer.request[0]] = buffer
