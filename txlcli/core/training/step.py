"""One training step: forward and backward passes, norm, clipping, update, in this order.

Axes: B batch, E tokens that are read again, L segment, M memory, d model width, N layers.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.core.kernels.modes import autocast, float32_products
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import Objective
from txlcli.core.training.exchange import Exchange
from txlcli.core.training.fast_path import FastPath
from txlcli.core.training.flat import ClippedMatrices, FlatMatrices, StepWeights
from txlcli.core.training.optimizer import set_rates
from txlcli.core.training.parallel import DataParallel
from txlcli.errors import TrainingError

MIN_LOSS_SCALE = 1.0
"""Smallest scale of the loss in fp16. The scale begins at 65,536, and each skipped step halves it."""


class Batch(NamedTuple):
    """The segments of one micro-batch in one step."""

    inputs: Tensor
    """(B, E + L)."""
    targets: Tensor
    """(B, L)."""
    goal: Objective


class Step:
    """Takes training steps: `gradients`, `norm` and `update`, one after another.

    Args:
        parallel: the model and its optimizer.
        copies: dtype of copies of the matrices, which passes read; None if they read the matrices themselves.
    """

    def __init__(self, parallel: DataParallel, copies: torch.dtype | None = None) -> None:
        self.parallel = parallel
        self.settings = parallel.settings
        self.optimizer = parallel.optimizer
        self.weights = _weights(parallel, copies)
        self.fast_path = FastPath(parallel)
        self.scaler = torch.amp.GradScaler(self.model.device.type, enabled=self.settings.precision == "fp16")
        """Scales the loss in fp16, and skips steps with non-finite gradients."""
        self.grad_norm = torch.zeros((), device=self.model.device)
        """Norm of all gradients of the step at work (0-d), before they are clipped."""

    @property
    def model(self) -> LanguageModel:
        """The view of the model that computes."""
        return self.parallel.model

    def gradients(self, batches: Sequence[Batch], memories: list[Memory]) -> Tensor:
        """Add the gradients of all lanes, those of this process one micro-batch after another.

        Args:
            batches: the micro-batches.
            memories: the memory of each micro-batch before the segment; replaced in place by the memory after it.
        Returns:
            The mean loss and what the objective adds to it, (2,).
        """
        losses = []
        last = len(batches) - 1
        for number, (batch, memory) in enumerate(zip(batches, memories, strict=True)):
            with self.weights.in_use(is_first=number == 0, is_last=number == last):
                losses.append(self._forward_backward(batch, memory))
        self.fast_path.end_of_passes()
        total = sum(losses[1:], losses[0])
        self.weights.add_up(total)
        return total

    def _forward_backward(self, batch: Batch, memory: Memory) -> Tensor:
        """Add the gradients of a micro-batch, and return its share of the losses, (2,). See `gradients`."""
        with autocast(self.model.device, self.settings.precision), self.fast_path.layers(batch.inputs, memory):
            compute = self.parallel.with_all_weights(self.model.objective)
            loss, reported, new_memory = compute(batch.inputs, batch.targets, memory, batch.goal)
        if any(tensor.requires_grad for tensor in new_memory):
            raise TrainingError(
                f"the memory that {type(self.model).__name__} returns has a gradient; detach it, since no gradient "
                "flows into earlier segments"
            )
        memory[:] = new_memory  # no reference to the old one is left, so that the backward pass frees it layer by layer
        share = len(batch.targets) / self.settings.batch_size
        with float32_products(self.model.device, self.settings.precision):
            self.scaler.scale(loss).backward(torch.full_like(loss, share * self.parallel.gradient_factor))
        losses = torch.stack([reported, loss - reported]).detach()
        return losses * share if share < 1 else losses

    def norm(self) -> Tensor:
        """Return the total norm of all gradients (0-d), for `update`."""
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = self.weights.total_norm()
        return self.grad_norm

    def update(self, rate_of: Callable[[float], float]) -> None:
        """Clip the gradients, update the weights, and drop the gradients.

        `rate_of` returns the learning rate of a parameter group, given its factor.
        """
        set_rates(self.optimizer, rate_of)
        self.clip_and_update()
        self.model.forget_gradients()

    def clip_and_update(self) -> None:
        """Clip the gradients by their norm, and step the optimizer."""
        if self.weights.update_large(self.grad_norm):
            return
        self.weights.clip(self.grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.weights.refresh()

    @property
    def is_stuck(self) -> bool:
        """True if gradients overflow although the loss is not scaled up any more; reading it waits for the device."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < MIN_LOSS_SCALE

    def rehearse(self, batches: Sequence[Batch], memories: list[Memory]) -> None:
        """Try a path before its first step, if there are several processes; all of them must call this before a step.

        What fails in one of them is left out in all of them, and none waits for a process that has failed.
        """
        if isinstance(self.weights, Exchange):
            gradients = functools.partial(self.gradients, batches)
            self.fast_path.rehearse(self.weights, batches[0].inputs, memories, gradients)


def _weights(parallel: DataParallel, copies: torch.dtype | None) -> StepWeights:
    """Return what passes read: the parameters, or copies of the matrices in another dtype."""
    settings = parallel.settings
    if parallel.world.size > 1 and settings.parallel != "fsdp":
        return Exchange(parallel, copies)
    if copies is None:
        return StepWeights(parallel)
    if settings.accumulate > 1 or settings.precision == "fp16":
        return FlatMatrices(parallel, copies)
    return ClippedMatrices(parallel, copies)
