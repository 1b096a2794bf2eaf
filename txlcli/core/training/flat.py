"""The matrices of a model's layers in one buffer, which one kernel casts to the dtype of products and back."""

import contextlib
import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from txlcli.core.kernels.private import foreach, swap_parameter
from txlcli.core.model.linear import Linear

ALIGNMENT = 64
"""Each matrix begins at a multiple of this many numbers, so that kernels read it in wide units."""


class FlatMatrices:
    """The matrices that a model multiplies by in 16 bits: one buffer of them, of their copies and of their gradients.

    Optimizers, averages and checkpoints see the parameters of before, which are now views of the buffer in float32.
    Forward and backward passes read the copies instead, so that no pass casts a matrix of its own.
    """

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self._model = model
        self._modules = [module for module in model.modules() if isinstance(module, Linear)]
        self._parameters = [module.weight for module in self._modules]
        sizes = [-(-parameter.numel() // ALIGNMENT) * ALIGNMENT for parameter in self._parameters]
        self._offsets = list(itertools.accumulate(sizes, initial=0))
        self._masters, self._gradients = (self._parameters[0].new_zeros(self._offsets[-1]) for _ in range(2))
        self._copies, self._gradients_of_copies = (self._masters.to(dtype, copy=True) for _ in range(2))
        self._leaves = [copy.detach().requires_grad_() for copy in self._views(self._copies)]
        for parameter, master in zip(self._parameters, self._views(self._masters), strict=True):
            master.copy_(parameter.detach())
            parameter.data = master

    def _views(self, buffer: Tensor) -> list[Tensor]:
        """Return the part of each matrix in a buffer, in its shape."""
        places = zip(self._offsets, self._parameters, strict=False)
        return [buffer[first : first + matrix.numel()].view(matrix.shape) for first, matrix in places]

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the matrices once more, after their update."""
        self._copies.copy_(self._masters)

    def unclipped_gradients(self) -> list[Tensor]:
        """Return the gradients of all parameters of the model that have one: of matrices, those of their copies."""
        views = self._views(self._gradients_of_copies)
        own = {id(parameter): view for parameter, view in zip(self._parameters, views, strict=True)}
        return [own.get(id(each), each.grad) for each in self._model.parameters() if each.grad is not None]

    @torch.no_grad()
    def scale_gradients(self, factor: Tensor) -> None:
        """Give the matrices the gradients of the copies times a factor (0-d), and scale the other gradients."""
        # A factor with an axis makes the product float32.
        torch.mul(self._gradients_of_copies, factor[None], out=self._gradients)
        given = self.unclipped_gradients()
        foreach.mul_([gradient for gradient in given if gradient.dtype != self._copies.dtype], factor)

    @contextlib.contextmanager
    def in_use(self, *, adds: bool, waits: bool) -> Iterator[None]:
        """Let the model read the copies inside this block, and then give the matrices the gradients of the copies.

        Args:
            adds: they are added to the gradients of another such block.
            waits: the values follow with `scale_gradients`.
        """
        for module, leaf in zip(self._modules, self._leaves, strict=True):
            swap_parameter(module, "weight", leaf)
        try:
            yield
        finally:
            for module, parameter in zip(self._modules, self._parameters, strict=True):
                swap_parameter(module, "weight", parameter)
        places = zip(self._views(self._gradients_of_copies), self._leaves, strict=True)
        given = {place: leaf.grad for place, leaf in places if leaf.grad is not None}
        if len(given) < len(self._leaves):  # some weights take no part in some steps
            self._gradients_of_copies.zero_()
        foreach.copy_(list(given), list(given.values()))
        if not waits:
            (self._gradients.add_ if adds else self._gradients.copy_)(self._gradients_of_copies)
        for leaf, parameter, gradient in zip(self._leaves, self._parameters, self._views(self._gradients), strict=True):
            if leaf.grad is not None:
                leaf.grad, parameter.grad = None, gradient
