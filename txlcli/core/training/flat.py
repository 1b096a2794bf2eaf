"""The weights that a training step reads: as they are, or the matrices of the layers as copies in one flat buffer."""

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from txlcli.core.kernels.compilation import runs_triton
from txlcli.core.kernels.private import foreach, swap_parameter
from txlcli.core.kernels.updates import padded_numel, views_of
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.linear import Linear
from txlcli.core.training.distributed import failure_of
from txlcli.core.training.large_updates import LargeUpdates
from txlcli.core.training.optimizer import OPTIMIZERS
from txlcli.core.training.parallel import DataParallel

CLIP_EPS = 1e-6
"""Added to a norm that divides, as torch.nn.utils does."""


def matrices_of(model: LanguageModel) -> list[Linear]:
    """Return the matrices of a model that may be read as copies, in the same order for each of its views."""
    return [module for module in model.modules() if isinstance(module, Linear)]


def move_to(flat: Tensor, parameters: Sequence[Tensor]) -> None:
    """Let parameters be views of a flat buffer, with the values that they have."""
    for parameter, view in zip(parameters, views_of(flat, parameters), strict=True):
        view.copy_(parameter.detach())
        parameter.data = view


@contextlib.contextmanager
def swapped_in(model: LanguageModel, leaves: Mapping[Tensor, Tensor]) -> Iterator[None]:
    """Let a model read other tensors inside this block, given by the matrices that it reads them in place of."""
    modules = [module for module in matrices_of(model) if module.weight in leaves]
    weights = [module.weight for module in modules]
    for module, weight in zip(modules, weights, strict=True):
        swap_parameter(module, "weight", leaves[weight])
    try:
        yield
    finally:
        for module, weight in zip(modules, weights, strict=True):
            swap_parameter(module, "weight", weight)


def clip_factor(max_norm: float | None, norm: Tensor) -> Tensor:
    """Return the factor (0-d) that clips gradients of this norm (0-d); 1 without a largest norm."""
    return torch.ones_like(norm) if max_norm is None else (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)


def large_updates(
    parallel: DataParallel, weights: Sequence[Tensor], *, buffer: Tensor, copies: Tensor
) -> LargeUpdates | None:
    """Return what updates matrices, which fill a buffer as `views_of` reads it; None if the optimizer does."""
    settings = parallel.settings
    update = OPTIMIZERS[settings.optimizer].update_large
    waits = settings.precision == "fp16"  # the scaler skips steps
    if update is None or waits or not runs_triton(buffer.device, buffer.dtype):
        return None
    large = LargeUpdates(parallel.optimizer, update, weights, buffer=buffer, copies=copies)
    problem = parallel.world.first_reason(failure_of(large.rehearse))  # of Triton's compiler, or of the driver
    if problem is None:
        return large
    if parallel.world.is_rank_zero:
        warnings.warn(f"updates without Triton's kernels, which take longer: {problem}", stacklevel=2)
    return None


class StepWeights:
    """The parameters of a model. Forward and backward passes read them themselves, and products cast them."""

    _large: LargeUpdates | None = None
    """Updates the matrices and other large parameters by kernels of its own."""
    _large_gradients: Tensor
    """Gradients of the matrices that `_large` reads."""

    def __init__(self, parallel: DataParallel) -> None:
        self._parallel = parallel

    @property
    def _model(self) -> LanguageModel:
        """The view of the model that computes, which may be another one in the next step."""
        return self._parallel.model

    def in_use(self, *, is_first: bool, is_last: bool) -> contextlib.AbstractContextManager[None]:
        """Let the passes of a micro-batch, the first or the last of its step or another, run inside this block."""
        return contextlib.nullcontext()

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        self._parallel.world.all_reduce(tensor)

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d)."""
        gradients = [parameter.grad for parameter in self._model.parameters() if parameter.grad is not None]
        return self._parallel.total_norm(gradients)

    def update_large(self, norm: Tensor) -> bool:
        """Clip all gradients by their norm (0-d) and update all parameters; return False if there are no kernels."""
        if self._large is None or not self._large.can_step:
            return False
        self._large.step(self._large_gradients, clip_factor(self._parallel.settings.clip, norm))
        return True

    def clip(self, norm: Tensor) -> None:
        """Clip all gradients by their norm (0-d), for the optimizer."""
        if self._parallel.settings.clip is not None:
            nn.utils.clip_grads_with_norm_(self._model.parameters(), self._parallel.settings.clip, norm)

    def refresh(self) -> None:
        """Take note of parameters that the optimizer, or something else, has changed."""


class _Matrix(NamedTuple):
    """One matrix, and its parts of the buffers."""

    parameter: Tensor
    leaf: Tensor
    """The copy, which passes read instead of the parameter."""
    gradient: Tensor
    gradient_of_copy: Tensor


class FlatMatrices(StepWeights):
    """The matrices that a model multiplies by in 16 bits: one buffer of them, of their copies and of their gradients.

    Optimizers, averages and checkpoints see the parameters of before, which are now views of the buffer in float32.
    Forward and backward passes read the copies instead, so that no pass casts a matrix of its own.
    """

    def __init__(self, parallel: DataParallel, dtype: torch.dtype) -> None:
        super().__init__(parallel)
        weights = [module.weight for module in matrices_of(self._model)]
        self._masters = weights[0].new_zeros(sum(map(padded_numel, weights)))
        self._gradients = torch.zeros_like(self._masters)
        self._copies = torch.zeros_like(self._masters, dtype=dtype)
        self._gradients_of_copies = torch.zeros_like(self._copies)
        move_to(self._masters, weights)
        leaves = [view.detach().requires_grad_() for view in views_of(self._copies, weights)]
        gradients = views_of(self._gradients, weights)
        of_copies = views_of(self._gradients_of_copies, weights)
        self._matrices = list(map(_Matrix, weights, leaves, gradients, of_copies))
        self._large = large_updates(parallel, weights, buffer=self._masters, copies=self._copies)
        self._large_gradients = self._gradients
        self.refresh()

    @contextlib.contextmanager
    def in_use(self, *, is_first: bool, is_last: bool) -> Iterator[None]:
        """Let the model read the copies inside this block, and then give the matrices the gradients of the copies."""
        for matrix in self._matrices:
            matrix.leaf.grad = None  # a step that has failed leaves some
        with swapped_in(self._model, {matrix.parameter: matrix.leaf for matrix in self._matrices}):
            yield
        given = [matrix for matrix in self._matrices if matrix.leaf.grad is not None]
        if len(given) < len(self._matrices):  # some weights take no part in some steps
            self._gradients_of_copies.zero_()
        foreach.copy_([matrix.gradient_of_copy for matrix in given], [matrix.leaf.grad for matrix in given])
        self._cast_gradients(is_first=is_first)
        for matrix in given:
            matrix.leaf.grad = None
            matrix.parameter.grad = matrix.gradient

    def _cast_gradients(self, *, is_first: bool) -> None:
        """Cast the gradients of the copies, and add them to those of earlier micro-batches of the step."""
        if is_first:
            self._gradients.copy_(self._gradients_of_copies)
        else:
            self._gradients.add_(self._gradients_of_copies)

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the matrices once more, after a change."""
        self._copies.copy_(self._masters)


class ClippedMatrices(FlatMatrices):
    """`FlatMatrices` for steps whose gradients are neither added up nor unscaled: clipping casts them.

    That is one pass over them instead of two. Until `clip`, the `grad` of a matrix has the values of an earlier step.
    """

    def __init__(self, parallel: DataParallel, dtype: torch.dtype) -> None:
        super().__init__(parallel, dtype)
        self._large_gradients = self._gradients_of_copies

    def _cast_gradients(self, *, is_first: bool) -> None:
        """Leave this to `clip`."""

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d), given those of the copies."""
        gradients = self._unclipped()
        norms = dict[Tensor, Tensor]()
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
    def clip(self, norm: Tensor) -> None:
        max_norm = self._parallel.settings.clip
        if max_norm is None:
            super()._cast_gradients(is_first=True)
            return
        factor = clip_factor(max_norm, norm)
        # A factor with an axis makes the product float32.
        torch.mul(self._gradients_of_copies, factor[None], out=self._gradients)
        foreach.mul_([each for each in self._unclipped() if each.dtype != self._copies.dtype], factor)
