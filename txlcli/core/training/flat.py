"""The matrices of a model's layers in one buffer, which one kernel casts to the dtype of products and back."""

import contextlib
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txlcli.core.kernels.private import foreach, swap_parameter
from txlcli.core.model.linear import Linear

ALIGNMENT = 64
"""Each matrix begins at a multiple of this many numbers, so that kernels read it in wide units."""
CLIP_EPS = 1e-6
"""Added to a norm that divides, as torch.nn.utils does."""


class _Matrix(NamedTuple):
    """One matrix, and its parts of the buffers."""

    module: Linear
    parameter: nn.Parameter
    leaf: Tensor
    """The copy, which passes read instead of the parameter."""
    gradient: Tensor
    gradient_of_copy: Tensor


class FlatMatrices:
    """The matrices that a model multiplies by in 16 bits: one buffer of them, of their copies and of their gradients.

    Optimizers, averages and checkpoints see the parameters of before, which are now views of the buffer in float32.
    Forward and backward passes read the copies instead, so that no pass casts a matrix of its own.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        modules = [module for module in model.modules() if isinstance(module, Linear)]
        weights = [module.weight for module in modules]
        sizes = [-(-weight.numel() // ALIGNMENT) * ALIGNMENT for weight in weights]
        self._masters, self._gradients = (weights[0].new_zeros(sum(sizes)) for _ in range(2))
        self._copies, self._gradients_of_copies = (torch.zeros_like(self._masters, dtype=dtype) for _ in range(2))
        buffers = (self._masters, self._copies, self._gradients, self._gradients_of_copies)
        self._matrices = list[_Matrix]()
        for module, weight, *parts in zip(modules, weights, *(buffer.split(sizes) for buffer in buffers), strict=True):
            master, copy, *gradients = (part[: weight.numel()].view_as(weight) for part in parts)
            master.copy_(weight.detach())
            weight.data = master
            self._matrices.append(_Matrix(module, weight, copy.detach().requires_grad_(), *gradients))

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the matrices once more, after their update."""
        self._copies.copy_(self._masters)

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d), given those of the copies."""
        gradients, norms = self._unclipped(), dict[Tensor, Tensor]()
        for dtype in {gradient.dtype for gradient in gradients}:
            group = [gradient for gradient in gradients if gradient.dtype == dtype]
            norms |= zip(group, foreach.norm(group, 2, self._masters.dtype), strict=True)
        # In the order of a step without copies, which has the same bits.
        return torch.linalg.vector_norm(torch.stack([norms[gradient] for gradient in gradients]))

    def _unclipped(self) -> list[Tensor]:
        """Return the gradients of all parameters of the model that have one: of matrices, those of their copies."""
        own = {matrix.parameter: matrix.gradient_of_copy for matrix in self._matrices}
        return [own.get(each, each.grad) for each in self._model.parameters() if each.grad is not None]

    @torch.no_grad()
    def clip(self, max_norm: float, norm: Tensor) -> None:
        """Clip all gradients by their norm (0-d), and give the matrices those of the copies."""
        factor = (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
        # A factor with an axis makes the product float32.
        torch.mul(self._gradients_of_copies, factor[None], out=self._gradients)
        foreach.mul_([each for each in self._unclipped() if each.dtype != self._copies.dtype], factor)

    @contextlib.contextmanager
    def in_use(self, *, adds: bool, waits: bool) -> Iterator[None]:
        """Let the model read the copies inside this block, and then give the matrices the gradients of the copies.

        Args:
            adds: they are added to the gradients of another such block.
            waits: the values follow with `clip`.
        """
        for matrix in self._matrices:
            swap_parameter(matrix.module, "weight", matrix.leaf)
        try:
            yield
        finally:
            for matrix in self._matrices:
                swap_parameter(matrix.module, "weight", matrix.parameter)
        given = [matrix for matrix in self._matrices if matrix.leaf.grad is not None]
        if len(given) < len(self._matrices):  # some weights take no part in some steps
            self._gradients_of_copies.zero_()
        foreach.copy_([matrix.gradient_of_copy for matrix in given], [matrix.leaf.grad for matrix in given])
        if not waits:
            (self._gradients.add_ if adds else self._gradients.copy_)(self._gradients_of_copies)
        for matrix in given:
            matrix.leaf.grad, matrix.parameter.grad = None, matrix.gradient
