"""Matrices of a model, which a backend multiplies by, or a packed copy while the model only reads.

Axes: T rows.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from txlcli.core.backend import aligned
from txlcli.core.kernels.device import cast_for_products, row_multiple
from txlcli.core.kernels.linear import Packed, by_onednn
from txlcli.core.model.backends import FAST


class Linear(nn.Linear):
    """nn.Linear, computed by a backend."""

    backend = FAST
    packed: Packed | None = None
    """Weight and bias repacked for oneDNN. Not updated when the parameters change."""

    def pack(self, dtype: torch.dtype) -> None:
        """Prepare the weight for reading in this dtype: see `LanguageModel.pack`."""
        if by_onednn(self.weight, dtype):
            self.packed = Packed.of(self.weight.to(dtype), None if self.bias is None else self.bias.to(dtype))
        else:
            self.cast(dtype)

    def cast(self, dtype: torch.dtype) -> None:
        """Replace weight and bias by copies of this dtype without gradient; the old parameters do not change."""
        if dtype != self.weight.dtype:
            self.weight = nn.Parameter(self.weight.detach().to(dtype), requires_grad=False)
            self.bias = None if self.bias is None else nn.Parameter(self.bias.detach().to(dtype), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (..., T, in) -> (..., T, out)."""
        if self.packed is not None:
            return self.packed.multiply(rows)
        return self.backend.linear(rows, self.weight, self.bias)


def joined_heads(matrices: Iterable[nn.Linear], d_head: int, width: int) -> Tensor:
    """Return the weights (H * D, d) of matrices one below the other, in the dtype of products.

    Zeros are appended: to D up to the multiple of the device, and to d up to `width`.
    """
    weight = torch.cat([matrix.weight for matrix in matrices])
    wide = aligned(weight.unflatten(0, (-1, d_head)), width, d_head + -d_head % row_multiple(weight.device))
    return cast_for_products(wide.flatten(0, 1))


def merge(matrices: Sequence[nn.Linear], dtype: torch.dtype) -> Packed:
    """Return matrices of equal sizes one below the other, for reading in a dtype.

    Where the merged matrix is not packed, they become views of it.
    """
    packs = by_onednn(matrices[0].weight, dtype)
    weight = torch.cat([matrix.weight.detach() for matrix in matrices]).to(dtype)
    for matrix, part in zip(matrices, weight.chunk(len(matrices)), strict=True):
        assert isinstance(matrix, Linear)
        matrix.packed = None
        if packs:
            matrix.cast(dtype)
        else:
            matrix.weight = nn.Parameter(part, requires_grad=False)
    return Packed.of(weight) if packs else Packed(weight, None)
