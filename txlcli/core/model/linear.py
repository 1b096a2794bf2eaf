"""Matrices of a model, which a backend multiplies by, or a packed copy while the model only reads.

Axes: T rows.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from txlcli.core.kernels.linear import pack
from txlcli.core.model.backends import FAST


class Linear(nn.Linear):
    """nn.Linear, computed by a backend."""

    backend = FAST
    packed: tuple[Tensor, Tensor | None] | None = None
    """Weight and bias for reading. Not updated when the parameters change."""

    def pack(self, dtype: torch.dtype) -> None:
        """Prepare the weight for reading in this dtype: see `LanguageModel.pack`."""
        bias = None if self.bias is None else self.bias.detach().to(dtype)
        self.packed = pack(self.weight, dtype), bias

    def forward(self, rows: Tensor) -> Tensor:
        """Multiply rows (..., T, in) -> (..., T, out)."""
        return self.backend.linear(rows, *(self.packed or (self.weight, self.bias)))


def merge(matrices: Sequence[nn.Linear], dtype: torch.dtype) -> Tensor:
    """Return the weights of matrices of equal sizes one below the other, for reading in a dtype.

    Where they are not in oneDNN's layout, the matrices read views of them.
    """
    merged = pack(torch.cat([matrix.weight for matrix in matrices]), dtype)
    if merged.is_mkldnn:
        parts = [matrix.weight.detach().to(dtype) for matrix in matrices]
    else:
        parts = list(merged.chunk(len(matrices)))
    for matrix, part in zip(matrices, parts, strict=True):
        assert isinstance(matrix, Linear)
        matrix.packed = part, None
    return merged
