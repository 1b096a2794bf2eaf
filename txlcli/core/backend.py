"""The interface between the model and its implementations: the terms of a score, and the functions that compute it.

`core.model.attention` is the definition, `core.kernels` has the fast implementations, `core.model.backends` chooses.

Axes: B batch, L segment, M memory, K = M + L keys, H heads, D head width, n distances scored, m of them with a position
key of their own.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Rotation:
    """Rotates the pairs (c, c + D/2) of each query and key by an angle per position and pair."""

    cosine: Tensor
    """(x, D/2), as `distance_encoding` computes it, in float64 where the device has it."""
    sine: Tensor
    """(x, D/2), likewise."""

    def apply(self, heads: Tensor) -> Tensor:
        """Return queries or keys (B, H, x, D) rotated to the last x positions; computed in float32 at least."""
        dtype = torch.promote_types(heads.dtype, torch.float32)
        start = self.cosine.shape[0] - heads.shape[2]
        cosine = self.cosine[start:].to(dtype)
        sine = self.sine[start:].to(dtype)
        first, second = heads.to(dtype).chunk(2, dim=-1)
        rotated = torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)
        return rotated.to(heads.dtype)

    def before(self, count: int) -> "Rotation":
        """Return the rotation to all positions but the last `count`."""
        return Rotation(self.cosine[:-count], self.sine[:-count])


@dataclass(frozen=True)
class ScoreTerms:
    """Score terms (b) to (d) of one layer, next to the content score (a); None adds nothing.

    Rows "by distance" begin with the largest: the last row is distance 0, the one before it distance 1. The first also
    stands for every larger distance. `nearest_rows` and `at_distance` read such rows.

    `distances` are instead of (b) to (d): `Attention.project_distances` turns them into these terms.
    """

    reach: int
    """n; a query sees the distances 0 .. n - 1, no others."""
    position_key: Tensor | None = None
    """(b): W_kR R, Q of Appendix B, by distance, (H, m, D), m at most n. For `AttendContext`, rows of zeros may follow,
    which align the rows of scores; then m is n without them."""
    content_bias: Tensor | None = None
    """(c): u, (H, D)."""
    position_bias: Tensor | None = None
    """(d): v, (H, D), together with `position_key`."""
    distance_bias: Tensor | None = None
    """Added to the scaled score, as ALiBi's penalty, by distance, (H, n)."""
    rotation: Rotation | None = None
    """Applied to queries and keys before they are scored: to positions of memory and segment, or of a reader's segment
    alone, whose past has rotated keys."""
    farthest: Tensor | None = None
    """Largest distance that each query sees, (B, L); a larger one than n - 1 limits nothing. None limits no query."""
    distances: Tensor | None = None
    """R by distance, (m, d), which the layer is to project with its own W_k and W_q."""

    def nearest(self, count: int) -> "ScoreTerms":
        """Return the terms of the `count` nearest distances."""
        if count == self.reach:
            return self
        key = self.position_key
        if key is not None:
            key = key[:, -count:]
        bias = self.distance_bias
        if bias is not None:
            bias = bias[:, -count:]
        return dataclasses.replace(self, reach=count, position_key=key, distance_bias=bias)

    def unseen(self, key_len: int) -> Tensor | None:
        """Return True for the keys that are farther away than each query sees, (B, 1, L, K); None without a limit."""
        if self.farthest is None:
            return None
        seg_len = self.farthest.shape[1]
        query = torch.arange(key_len - seg_len, key_len, device=self.farthest.device)  # (L,)
        first_key = (query - self.farthest)[:, None, :, None]
        return torch.arange(key_len, device=self.farthest.device) < first_key

    def to(self, dtype: torch.dtype) -> "ScoreTerms":
        """Cast the tensors in floating point; a rotation is not cast."""
        tensors = {}
        for name, term in vars(self).items():
            if isinstance(term, Tensor) and term.is_floating_point():
                tensors[name] = term.to(dtype)
        return dataclasses.replace(self, **tensors)  # type: ignore[arg-type]

    def without_repetition(self, max_distance: int | None) -> "ScoreTerms":
        """Keep one of the equal position keys of the distances from `max_distance` on, contiguous."""
        key = self.position_key
        if key is None:
            return self
        if max_distance is not None:
            key = key[:, -max_distance - 1 :]
        return dataclasses.replace(self, position_key=key.contiguous())


def nearest_rows(by_distance: Tensor, count: int) -> Tensor:
    """Return the rows (H, n, ...) of the `count` smallest distances, by distance, from (H, m, ...) by distance."""
    missing = count - by_distance.shape[1]
    if missing <= 0:
        return by_distance[:, -missing:]
    heads, _, *others = by_distance.shape
    farther = by_distance[:, :1].expand(heads, missing, *others)
    return torch.cat([farther, by_distance], dim=1)


def at_distance(by_distance: Tensor, distance: Tensor, dim: int) -> Tensor:
    """Return the rows at given distances (x,), from m rows by distance along an axis; any row at negative ones."""
    last = by_distance.shape[dim] - 1
    return by_distance.index_select(dim, (last - distance).clamp(0, last))


def pad_to(tensor: Tensor, columns: int, rows: int | None = None) -> Tensor:
    """Append zeros to a tensor (..., T, in), so that it has so many columns, and rows if these are given."""
    missing_columns = columns - tensor.shape[-1]
    missing_rows = 0 if rows is None else rows - tensor.shape[-2]
    if missing_rows:
        return F.pad(tensor, (0, missing_columns, 0, missing_rows))
    return F.pad(tensor, (0, missing_columns)) if missing_columns else tensor


def round_up(count: int, multiple: int) -> int:
    """Round a number up to a multiple of another."""
    return count + -count % multiple


def repeat_for_lanes(bias: Tensor, rows: Tensor) -> Tensor:
    """Return a bias (x, ...) for each lane of rows (B, L, x, ...), so that its gradient adds up L before B.

    torch.compile joins the first sum to the kernel that writes the gradients of the rows; for a sum over both axes at
    once, it reads these gradients again.
    """
    return bias.expand(len(rows), *[1] * (rows.dim() - bias.dim() - 1), *bias.shape)


class Attend(Protocol):
    """Attention over the keys that each query may see, as `core.model.attention.attend` defines it."""

    def __call__(self, query: Tensor, key: Tensor, value: Tensor, terms: ScoreTerms, *, dropout: float = 0.0) -> Tensor:
        """Return (B, H, L, D), in the dtype of `value`.

        Args:
            query: (B, H, L, D).
            key: (B, H, K, D or wider, then ending in zeros); the last L keys are the positions of the queries.
            value: (B, H, K, like `key`).
            terms: of the score. The sum of (a) to (d) is divided by sqrt(D).
            dropout: probability of dropping an attention weight.
        """


class AttendContext(Protocol):
    """`Attend` for keys and values side by side, in heads that may end in zeros."""

    def __call__(
        self, query: Tensor, key_value: Tensor, terms: ScoreTerms, *, width: int, dropout: float = 0.0
    ) -> Tensor:
        """Return (B, H, L, D) for queries (B, H, L, D), keys and values (B, K, 2, H, D); `width` is D without zeros."""


Linear = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""A product with a matrix, as torch.nn.functional.linear computes it."""


class Drop(Protocol):
    """Dropout of hidden states."""

    def __call__(self, hidden: Tensor, rate: float, *, variational: bool) -> Tensor:
        """Zero entries with probability `rate` and scale the others.

        Variational: one mask for all positions, the axis before the last.
        """
