"""The log normalizer of a softmax over many ids, computed block by block.

On a CPU the logits of a block are still in the cache when they are summed, and again when their gradient is multiplied;
on a GPU the blocks bound the memory. Only the logits kept for the backward pass ever take tokens times ids. What is
done with the logits of a block has two implementations: PyTorch's operations in `normalizer_rows`, and the kernels
of `normalizer_triton`.

Axes: T tokens, w width, n ids; in one block t tokens and c ids.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from txlcli.core.kernels.compilation import runs_triton
from txlcli.core.kernels.device import autocast_dtype
from txlcli.core.kernels.linear import linear
from txlcli.core.kernels.modes import memory_is_unlimited
from txlcli.core.kernels.normalizer_rows import RowOperations


@dataclass(frozen=True, kw_only=True)
class BlockSize:
    """Limits on the logits of one block."""

    cpu_bytes: int = 4 << 20
    """Bytes of a block on a CPU, counted in fp32."""
    gpu_bytes: int = 512 << 20
    """Bytes of a block on a GPU, counted in fp32."""
    cpu_tokens: int = 1024
    """Tokens of a block on a CPU: with more, it would have too few ids for a fast product."""
    id_multiple: int = 128
    """The number of ids is a multiple of this."""
    kept_bytes: int = 1 << 30
    """Most bytes of logits that are kept for a backward pass by row kernels on a GPU; more are computed again."""

    def blocks(self, hidden: Tensor, ids: int) -> Iterator[tuple[slice, slice]]:
        """Yield the tokens and ids of each block of hidden (T, w) and n ids, all ids of some tokens before the next."""
        tokens = len(hidden)
        height = max(1, tokens)
        size = self.gpu_bytes
        if hidden.device.type == "cpu":
            height = min(height, self.cpu_tokens)
            size = self.cpu_bytes
        fitting = size // (4 * height)
        width = max(self.id_multiple, fitting // self.id_multiple * self.id_multiple)
        for first in range(0, tokens, height):
            for begin in range(0, ids, width):
                yield slice(first, min(first + height, tokens)), slice(begin, min(begin + width, ids))


DEFAULT_SIZE = BlockSize()
ONE_BLOCK = BlockSize(cpu_tokens=1 << 60, cpu_bytes=1 << 62)
"""All logits at once: as many bytes are saved, by fewer operations."""


class SpareGradient:
    """Memory of a large gradient, reused by the next step: the system would clear new memory first, page by page."""

    def __init__(self) -> None:
        self._tensor: Tensor | None = None

    def acquire(self, like: Tensor) -> Tensor:
        """Return uninitialized memory for the gradient of this tensor."""
        spare = self._tensor
        self._tensor = None
        if spare is not None and (spare.shape, spare.dtype, spare.device) == (like.shape, like.dtype, like.device):
            return spare
        return torch.empty_like(like)

    def release(self, gradient: Tensor | None) -> None:
        """Keep the memory of a gradient that is no longer in use."""
        self._tensor = gradient

    def __deepcopy__(self, memo: object) -> "SpareGradient":
        """A copy of a model keeps no memory."""
        return SpareGradient()


def normalize(
    hidden: Tensor,
    table: Tensor,
    bias: Tensor,
    chosen: Tensor,
    *,
    spare: SpareGradient,
    recompute: bool = False,
    rows: RowOperations | None = None,
    size: BlockSize | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the logsumexp of all logits and the logit of one id: (T,) each, float32 at least.

    The logits (T, n) are `hidden @ table.mT + bias`, multiplied in autocast's dtype, or in the dtype of `hidden` if
    that has 16 bits.

    Args:
        hidden: (T, w).
        table: (n, w).
        bias: (n,).
        chosen: (T,) ids whose logits are returned.
        spare: memory for the gradient of the table.
        recompute: compute the logits again in the backward pass instead of keeping them.
        rows: computes what is computed of a block of logits; by default Triton where it runs, else PyTorch.
        size: of the blocks; by default as large as is fast, and one block for tensors without data.
    """
    if size is None:
        size = ONE_BLOCK if memory_is_unlimited() else DEFAULT_SIZE
    dtype = autocast_dtype(hidden)
    rows = rows or _fast_rows(hidden.device, dtype)
    blocks = list(size.blocks(hidden, len(table)))
    if rows.spends_logits:
        logit_bytes = len(hidden) * len(table) * dtype.itemsize
        recompute = recompute or logit_bytes > size.kept_bytes
        if not recompute:  # logits that are kept, and overwritten by their gradients, are one block
            blocks = [(slice(0, len(hidden)), slice(0, len(table)))]
    needs_gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (hidden, table, bias))
    work = _Work(dtype, rows, blocks, spare, keeps=needs_gradient and not recompute)
    # Kernels read neighbours; the targets of segments with one token are a column.
    total_and_logit: tuple[Tensor, Tensor] = _Normalizer.apply(work, hidden, table, bias, chosen.contiguous())
    return total_and_logit


def _fast_rows(device: torch.device, dtype: torch.dtype) -> RowOperations:
    """Return the row operations of a device, for logits of a dtype."""
    if not runs_triton(device, dtype):
        return RowOperations()
    from txlcli.core.kernels.normalizer_triton import TritonRows  # noqa: PLC0415 - PyTorch for CPUs has no Triton

    return TritonRows()


@dataclass(frozen=True)
class _Work:
    """How the logits of one call are computed; see `normalize`."""

    dtype: torch.dtype
    """Of products."""
    rows: RowOperations
    blocks: list[tuple[slice, slice]]
    """Tokens and ids of each block."""
    spare: SpareGradient
    keeps: bool
    """True to keep the logits for the backward pass."""

    def logits(self, hidden: Tensor, table: Tensor, bias: Tensor) -> Tensor:
        """Return the logits (t, c) of hidden states (t, w), a table (c, w) and its bias (c,)."""
        return linear(hidden.to(self.dtype), table.to(self.dtype), bias.to(self.dtype))


class _Normalizer(torch.autograd.Function):
    """`normalize`; the gradient of the logits is softmax times the normalizer's, plus the chosen logit's."""

    @staticmethod
    def forward(
        ctx: Any, work: _Work, hidden: Tensor, table: Tensor, bias: Tensor, chosen: Tensor
    ) -> tuple[Tensor, Tensor]:
        exact = torch.promote_types(work.dtype, torch.float32)
        total = torch.empty(len(hidden), dtype=exact, device=hidden.device)
        logit = torch.empty_like(total)
        saved_logits: list[Tensor] = []
        for tokens, ids in work.blocks:
            logits = work.logits(hidden[tokens], table[ids], bias[ids])
            if work.keeps:
                saved_logits.append(logits)
            work.rows.accumulate(logits, chosen[tokens], ids, total[tokens], logit[tokens])
            del logits  # free them before the next block allocates its own
        ctx.work = work
        ctx.save_for_backward(hidden, table, bias, chosen, total, *saved_logits)
        return total, logit

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_total: Tensor, grad_logit: Tensor) -> tuple[Tensor | None, ...]:
        hidden, table, bias, chosen, total, *saved_logits = ctx.saved_tensors
        work: _Work = ctx.work
        grad_table = work.spare.acquire(table)
        if not len(hidden):
            return None, torch.zeros_like(hidden), grad_table.zero_(), torch.zeros_like(bias), None
        hidden_gradients: list[Tensor] = []  # the gradient of the tokens of each block
        bias_gradients: dict[int, Tensor] = {}  # the gradient of the ids of each block, by the first one
        for number, (tokens, ids) in enumerate(work.blocks):
            read = hidden[tokens].to(work.dtype)
            weight = table[ids].to(work.dtype)
            logits = saved_logits[number] if saved_logits else work.logits(read, weight, bias[ids])
            grad, sums = work.rows.gradient(
                logits, chosen[tokens], ids, total[tokens], grad_total[tokens], grad_logit[tokens]
            )  # (t, c), (c,)
            product = linear(grad, weight.mT)  # (t, w)
            if ids.start == 0:
                hidden_gradients.append(product)
            else:
                hidden_gradients[-1] = hidden_gradients[-1].to(total.dtype).add_(product)
            if tokens.start == 0:
                bias_gradients[ids.start] = sums
            else:
                bias_gradients[ids.start].add_(sums)
            _add_product(grad_table[ids], grad.mT, read, first=tokens.start == 0)
        grad_hidden = _joined(hidden_gradients).to(hidden.dtype)
        grad_bias = _joined(list(bias_gradients.values())).to(bias.dtype)
        return None, grad_hidden, grad_table, grad_bias, None


def _joined(parts: list[Tensor]) -> Tensor:
    """Return the gradient of all blocks from its parts, one after the other."""
    if len(parts) == 1:
        return parts[0]
    return torch.cat(parts)


def _add_product(out: Tensor, left: Tensor, right: Tensor, *, first: bool) -> None:
    """Write a product to `out`, or add it to the sum of earlier blocks."""
    same_dtype = left.dtype == out.dtype
    if first and same_dtype:
        torch.mm(left, right, out=out)
    elif first:
        out.copy_(left @ right)
    elif same_dtype:
        out.addmm_(left, right)
    else:
        out.add_(left @ right)
