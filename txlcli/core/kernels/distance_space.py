"""Scores by distance, and the same memory seen by key: the efficient computation of Appendix B.

Axes: L segment, K = M + L keys, D head width, n distances scored, m of them with a position key.

The position score of a query depends on its distance to a key only, so it is computed against distances. A row of
distance space has K + L - 1 columns: column c < K scores distance K - 1 - c, the last L - 1 columns stand for negative
distances (the future) and hold -inf. Read with a row stride that is one shorter, starting at column L - 1, the same
numbers are the (L, K) score of every key: shifted and causally masked without a copy, a pad or a mask tensor.

On a CPU a batch of fp32 products is quick only if it writes without gaps, and so is one of single queries in 16 bits.
There rows hold the distances and nothing else, and a mask says which of the numbers read by key mean something.

Both kinds have parts, for some of a segment's queries and the keys up to the last of them. A part of the first kind is
the end of the whole, where distance 0 is; a part of the second kind has the same memory in rows of its own length.
"""

import copy
import math
from typing import Any, Literal

import torch
from torch import Tensor

from txlcli.core.kernels.device import row_multiple

HALF_DTYPES = (torch.bfloat16, torch.float16)


class PaddedScoreBuffer:
    """Scores of `rows` (lane, head) pairs by distance, and the same memory seen by key.

    Args:
        like: gives dtype and device.
        rows: lanes times heads.
        seg_len: L.
        key_len: K.
        reach: n; distances n and more keep the value of `fill` and so are never seen.
        fill: what the columns hold that no product writes: -inf for scores, 0 for gradients.
        known: m, distances that products write; all by default.
    """

    made_for: tuple[Any, ...] = ()
    """What `Workspace.acquire` was asked for; only for the same is this memory of use again."""

    def __init__(
        self,
        like: Tensor,
        *,
        rows: int,
        seg_len: int,
        key_len: int,
        reach: int,
        fill: float,
        known: int | None = None,
    ) -> None:
        multiple = row_multiple(like.device)
        ahead = (reach if known is None else known) - key_len  # what products write begins at a multiple
        ahead %= multiple
        width = -(-(ahead + key_len + seg_len - 1) // multiple) * multiple
        columns = torch.full((rows, seg_len, width), fill, dtype=like.dtype, device=like.device)
        self.by_distance = columns[:, :, ahead + key_len - reach : ahead + key_len]  # (rows, L, n)
        self.by_key = columns.as_strided(  # (rows, L, K)
            (rows, seg_len, key_len), (seg_len * width, max(width - 1, 1), 1), ahead + seg_len - 1
        )
        self._foreign = 0  # first columns of by_distance that by_key may lack, with numbers that another part has left

    def view(self, seg_len: int, key_len: int) -> "PaddedScoreBuffer":
        """The same memory for fewer queries and fewer keys."""
        if (seg_len, key_len) == self.by_key.shape[1:]:
            return self
        view = copy.copy(self)
        view.by_distance = self.by_distance[:, -seg_len:, -key_len:]
        view.by_key = self.by_key[:, -seg_len:, -key_len:]
        view._foreign = max(0, seg_len - 1 - (key_len - view.by_distance.shape[2]))
        return view

    def write_by_key(self, by_key: Tensor) -> None:
        """Write (rows, L, K) numbers by key; `by_distance` then holds these and zeros."""
        self.by_distance[:, :, : self._foreign] = 0.0
        self.by_key.copy_(by_key)

    def multiply(self, query: Tensor, position_key: Tensor) -> None:
        """Score queries (rows, L, D) against the position keys (rows, m, D); farther distances score as row 0 does."""
        known, reach = position_key.shape[1], self.by_distance.shape[2]
        torch.bmm(query, position_key.mT, out=self.by_distance[:, :, reach - known :])
        if known < reach:
            self.by_distance[:, :, : reach - known] = self.by_distance[:, :, reach - known : reach - known + 1]

    def masked_by_key(self, out: Tensor) -> Tensor:
        """Position scores by key (rows, L, K), -inf where a query sees no key; `out` is left alone."""
        return self.by_key


class DenseScoreBuffer:
    """The same scores without gaps between the rows of `by_distance`; `by_key` is arbitrary where the mask hides it.

    Args:
        like: gives dtype and device.
        rows: lanes times heads.
        seg_len: L.
        key_len: K.
        reach: n.
        known: m, distances that have a position key; farther ones score as the farthest of these. Where there are such,
            `by_key` holds the last m keys only.
    """

    made_for: tuple[Any, ...] = ()
    """What `Workspace.acquire` was asked for; only for the same is this memory of use again."""

    def __init__(self, like: Tensor, *, rows: int, seg_len: int, key_len: int, reach: int, known: int) -> None:
        # The first row reads some numbers before its own: zeros that no part writes to, since they are hidden by a sum.
        self._ahead = key_len - reach if known == reach else 0
        self._numbers = torch.zeros(self._ahead + rows * seg_len * known, dtype=like.dtype, device=like.device)
        query, key = torch.arange(key_len - seg_len, key_len)[:, None], torch.arange(key_len)
        hidden = (query - key < 0) | (query - key >= reach)  # (L, K)
        self._rows, self._reach, self._known = rows, reach, known
        self.mask = torch.zeros(seg_len, key_len).masked_fill(hidden, -math.inf).to(like)
        self._look(seg_len, key_len)

    def _look(self, seg_len: int, key_len: int) -> None:
        """See the numbers as those of so many queries and keys."""
        known = min(self._known, key_len)
        near = key_len if self._known == self._reach else known
        self._far = key_len - near  # keys
        self.by_distance = self._numbers[self._ahead :][: self._rows * seg_len * known].view(-1, seg_len, known)
        first = self._ahead - (near - known) + seg_len - 1
        self.by_key = self._numbers.as_strided(  # (rows, L, K - far)
            (self._rows, seg_len, near), (seg_len * known, known - 1, 1), first
        )

    def view(self, seg_len: int, key_len: int) -> "DenseScoreBuffer":
        """The same memory for fewer queries and fewer keys; it holds the numbers of one part at a time."""
        if self.mask.shape == (seg_len, key_len):
            return self
        view = copy.copy(self)
        view.mask = self.mask[-seg_len:, -key_len:]
        view._look(seg_len, key_len)
        return view

    def multiply(self, query: Tensor, position_key: Tensor) -> None:
        """Score queries (rows, L, D) against the position keys (rows, m, D)."""
        torch.bmm(query, position_key.mT, out=self.by_distance)

    def masked_by_key(self, out: Tensor) -> Tensor:
        """Position scores by key (rows, L, K), -inf where a query sees no key; they are written to `out`."""
        if not self._far:
            return torch.add(self.by_key, self.mask, out=out)
        torch.add(self.by_distance[:, :, :1], self.mask[:, : self._far], out=out[:, :, : self._far])
        torch.add(self.by_key, self.mask[:, self._far :], out=out[:, :, self._far :])
        return out


ScoreBuffer = PaddedScoreBuffer | DenseScoreBuffer


class Workspace:
    """Memory of a model for scores by distance, which all layers and segments use in turn: filling it takes time.

    No use overwrites the fill. On CUDA nothing is kept: all lanes are scored at once there, so that the memory is
    large, and filling it is quick.
    """

    def __init__(self) -> None:
        self._idle: dict[str, ScoreBuffer] = {}  # the last one of each purpose
        self.at_once = False
        """Whether all scores are computed in one pass, as on a GPU: for a forecast of one that is not there."""

    def __deepcopy__(self, memo: dict[int, Any]) -> "Workspace":
        return Workspace()

    def acquire(
        self,
        purpose: Literal["scores", "gradients"],
        like: Tensor,
        *,
        rows: int,
        seg_len: int,
        key_len: int,
        reach: int,
        known: int | None = None,
    ) -> ScoreBuffer:
        """A space that nobody else uses until it is put back.

        Args:
            purpose: scores are filled with -inf, gradients with 0.
            like: gives dtype and device.
            rows: lanes times heads.
            seg_len: L.
            key_len: K.
            reach: n.
            known: m, distances that have a position key; all by default.
        """
        known = reach if known is None else known
        request = (purpose, rows, seg_len, key_len, reach, known, like.dtype, like.device)
        idle = self._idle.pop(purpose, None)
        if idle is not None and idle.made_for == request:
            return idle
        sizes = {"rows": rows, "seg_len": seg_len, "key_len": key_len, "reach": reach}
        with torch.inference_mode(False):  # a later use may be one in training
            space: ScoreBuffer
            if purpose == "gradients":
                space = PaddedScoreBuffer(like, **sizes, fill=0.0)
            elif like.device.type == "cpu" and (like.dtype not in HALF_DTYPES or seg_len == 1):
                space = DenseScoreBuffer(like, **sizes, known=known)
            else:
                space = PaddedScoreBuffer(like, **sizes, fill=-math.inf, known=known)
        space.made_for = request
        return space

    def release(self, space: ScoreBuffer) -> None:
        """Let others use it."""
        if space.by_distance.device.type == "cpu":
            self._idle[space.made_for[0]] = space
