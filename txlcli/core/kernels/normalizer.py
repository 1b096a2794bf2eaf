"""The normaliser of a softmax over many ids, found a piece of the vocabulary at a time.

The logits of a piece are in a CPU's cache when they are summed, and again when their gradient is multiplied; on a GPU
pieces bound the memory. Nothing is ever as large as tokens times ids but the logits that a backward pass needs.

Axes: T tokens, w width, n ids; in one piece t tokens and c ids.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.kernels.linear import linear

CACHE_BYTES = 4 << 20
"""Logits of one piece on a CPU."""
GPU_BYTES = 512 << 20
"""Logits of one piece elsewhere."""
MOST_TOKENS = 1024
"""In a piece on a CPU: with more of them it would have too few ids for a quick product."""
MULTIPLE = 128
"""Of ids in a piece."""


class SpareGradient:
    """Keeps a large gradient's memory from one step to the next: new memory would be cleared first, page by page."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def take(self, like: Tensor) -> Tensor:
        """Memory for a gradient of this tensor, holding anything."""
        spare, self._tensor = self._tensor, None
        fits = spare is not None and (spare.shape, spare.dtype, spare.device) == (like.shape, like.dtype, like.device)
        return spare if spare is not None and fits else torch.empty_like(like)

    def give(self, gradient: Tensor | None) -> None:
        """Keep the memory of a gradient that nobody needs any more."""
        self._tensor = gradient

    def __deepcopy__(self, memo: object) -> "SpareGradient":
        """A copy of a model needs none."""
        return SpareGradient()


def normalize(
    hidden: Tensor, table: Tensor, bias: Tensor, chosen: Tensor, *, spare: SpareGradient, recompute: bool = False
) -> tuple[Tensor, Tensor]:
    """The logarithm of the sum of exp(logit) over all ids, and the logit of one id: (T,) each, float32 at least.

    The logits (T, n) are `hidden @ table.mT + bias`, multiplied as autocast says.

    Args:
        hidden: (T, w).
        table: (n, w).
        bias: (n,).
        chosen: (T,) ids, the one whose logit is wanted.
        spare: where the table's gradient may find its memory.
        recompute: keep no logits for the backward pass, which computes them again.
    """
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, table, bias)):
        total_and_logit: tuple[Tensor, Tensor] = _Normalizer.apply(hidden, table, bias, chosen, spare, recompute)
        return total_and_logit
    total, logit, _ = _normalize(hidden, table, bias, chosen, keep=False)
    return total, logit


def _piece_size(hidden: Tensor, ids: int) -> tuple[int, int]:
    """Tokens and ids of a piece, at most."""
    tokens = max(1, len(hidden))
    on_cpu = hidden.device.type == "cpu"
    height = min(tokens, MOST_TOKENS) if on_cpu else tokens
    width = (CACHE_BYTES if on_cpu else GPU_BYTES) // (4 * height)
    return height, min(ids, max(MULTIPLE, width // MULTIPLE * MULTIPLE))


def _pieces(hidden: Tensor, ids: int) -> Iterator[tuple[slice, slice]]:
    """Tokens and ids of each piece, all ids of some tokens before the next tokens."""
    height, width = _piece_size(hidden, ids)
    for first in range(0, len(hidden), height):
        for begin in range(0, ids, width):
            yield slice(first, min(first + height, len(hidden))), slice(begin, min(begin + width, ids))


class _Room:
    """Memory for one piece at a time."""

    def __init__(self, hidden: Tensor, ids: int, dtype: torch.dtype) -> None:
        height, width = _piece_size(hidden, ids)
        self._tensor = torch.empty(height * width, dtype=dtype, device=hidden.device)

    def of(self, rows: int, columns: int) -> Tensor:
        """(rows, columns) of that memory, holding what the piece before has left."""
        return self._tensor[: rows * columns].view(rows, columns)


def _product_dtype(hidden: Tensor, table: Tensor) -> torch.dtype:
    """The number format of products, which autocast may have chosen."""
    return torch.mm(hidden[:0], table[:0].mT).dtype


def _normalize(
    hidden: Tensor, table: Tensor, bias: Tensor, chosen: Tensor, *, keep: bool
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """What `normalize` gives, and the logits of each piece (t, c) if they are to be kept."""
    dtype = _product_dtype(hidden, table)
    exact = torch.promote_types(dtype, torch.float32)
    total = torch.full((len(hidden),), -torch.inf, dtype=exact, device=hidden.device)
    logit = torch.zeros_like(total)
    above = _Room(hidden, len(table), exact)
    saved_logits: list[Tensor] = []
    for rows, ids in _pieces(hidden, len(table)):
        logits = linear(hidden[rows].to(dtype), table[ids].to(dtype), bias[ids].to(dtype))
        if keep:
            saved_logits.append(logits)
        place, here = _within(chosen[rows], ids)
        logit[rows] = torch.where(here, logits.gather(1, place[:, None])[:, 0].to(exact), logit[rows])
        most = logits.amax(dim=-1, keepdim=True).to(exact)
        piece = torch.sub(logits, most, out=above.of(*logits.shape)).exp_().sum(dim=-1).log_().add_(most[:, 0])
        total[rows] = torch.logaddexp(total[rows], piece)
        del logits  # before the next piece has its own
    return total, logit, saved_logits


def _within(chosen: Tensor, ids: slice) -> tuple[Tensor, Tensor]:
    """Where the chosen ids (t,) are in a piece, and whether they are there; elsewhere any place."""
    place = chosen - ids.start
    return place.clamp(0, ids.stop - ids.start - 1), (place >= 0) & (chosen < ids.stop)


class _Normalizer(torch.autograd.Function):
    """`normalize` with its gradient: softmax times that of the normaliser, plus that of the chosen logit."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        table: Tensor,
        bias: Tensor,
        chosen: Tensor,
        spare: SpareGradient,
        recompute: bool,
    ) -> tuple[Tensor, Tensor]:
        total, logit, saved_logits = _normalize(hidden, table, bias, chosen, keep=not recompute)
        ctx.dtype, ctx.spare = _product_dtype(hidden, table), spare
        ctx.save_for_backward(hidden, table, bias, chosen, total, *saved_logits)
        return total, logit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, grad_logit: Tensor) -> tuple[Tensor | None, ...]:
        hidden, table, bias, chosen, total, *saved_logits = ctx.saved_tensors
        grad_hidden = torch.zeros(hidden.shape, dtype=total.dtype, device=hidden.device)
        grad_table, grad_bias = ctx.spare.take(table), torch.zeros_like(bias)
        if not len(hidden):
            grad_table.zero_()
        room = _Room(hidden, len(table), total.dtype)
        for number, (rows, ids) in enumerate(_pieces(hidden, len(table))):
            read, weight = hidden[rows].to(ctx.dtype), table[ids].to(ctx.dtype)
            logits = saved_logits[number] if saved_logits else linear(read, weight, bias[ids].to(ctx.dtype))
            grad = torch.sub(logits, total[rows, None], out=room.of(*logits.shape))  # (t, c)
            grad.exp_().mul_(grad_total[rows, None])
            place, here = _within(chosen[rows], ids)
            grad.scatter_add_(1, place[:, None], torch.where(here, grad_logit[rows], 0.0)[:, None])
            grad_bias[ids] += grad.sum(dim=0)
            short = grad.to(ctx.dtype)
            grad_hidden[rows] += linear(short, weight.mT)
            _add_product(grad_table[ids], short.mT, read, first=rows.start == 0)
        return grad_hidden.to(hidden.dtype), grad_table, grad_bias, None, None, None


def _add_product(place: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Write a product to `place`, or add it to what earlier pieces have left there."""
    if left.dtype != place.dtype:
        product = left @ right
        place.copy_(product) if first else place.add_(product)
    elif first:
        torch.mm(left, right, out=place)
    else:
        place.addmm_(left, right)
