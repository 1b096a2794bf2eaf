"""Layout of parameters that kernels update in one pass: buffers that are divided into chunks.

Axes: n elements of a buffer, c chunks, p parameters.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

ALIGNMENT = 64
"""Each matrix begins at a multiple of this many numbers, so that kernels read it in wide units."""
CHUNK = 4096
"""Most elements that a program of a kernel updates."""
UNIT = 16
"""Kernels access memory in wide units if all chunks begin and end at multiples of this many elements."""


@dataclass(frozen=True, kw_only=True)
class FlatParameters:
    """Parameters of one group of an optimizer in one buffer, with their state."""

    weights: Tensor
    """(n,) float32."""
    means: Tensor
    """(n,) of gradients."""
    squares: Tensor
    """(n,) means of the squares of gradients."""
    copies: Tensor | None
    """(n,) the weights in the dtype of products."""
    steps: Tensor | None
    """(p,) steps of each parameter, if the optimizer counts them."""
    chunks: Tensor
    """(c, 3) first number of each chunk, the first after it, and the number of its parameter."""
    firsts: Tensor
    """(p + 1,) number of the first chunk of each parameter, and of all chunks."""


def padded_numel(tensor: Tensor) -> int:
    """Return the number of elements that a tensor takes in a flat buffer."""
    return -(-tensor.numel() // ALIGNMENT) * ALIGNMENT


def views_of(flat: Tensor, tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return the views of a flat buffer that have the shapes of these tensors, which fill it."""
    parts = flat.split([padded_numel(tensor) for tensor in tensors])
    return [part[: tensor.numel()].view_as(tensor) for part, tensor in zip(parts, tensors, strict=True)]


def chunks_of(sizes: Sequence[int], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the chunks (c, 3) of parameters of these sizes, one after another in a buffer, and the firsts (p + 1,)."""
    chunks = list[tuple[int, int, int]]()
    firsts = [0]
    begin = 0
    for number, size in enumerate(sizes):
        end = begin + size
        for first in range(begin, end, CHUNK):
            chunks.append((first, min(first + CHUNK, end), number))
        firsts.append(len(chunks))
        begin = end
    return torch.tensor(chunks, device=device), torch.tensor(firsts, device=device)
