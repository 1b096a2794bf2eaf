"""A training step's forward and backward pass, recorded once and repeated: for models whose kernels are over too soon.

Every step of whole segments with a full memory runs the same kernels. What differs, the tokens and the memory, is
copied to where the recording reads it; gradients, loss and new memory lie where it writes them. Optimizer, clipping
and averages stay outside, since their numbers change from step to step.

Axes: B lanes, L segment, M memory, d model width, N layers.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from txlcli.core.kernels.cuda_graph import capture
from txlcli.core.model.base import LanguageModel, Memory

Pass = Callable[[Tensor, Tensor, Memory], Tensor]
"""Adds the gradients of inputs (B, L) and targets (B, L) after a memory, which the new one replaces; gives the loss."""


class RecordedPass:
    """Does what a pass does, by a recording made at the first call.

    Args:
        run: the pass; it must not wait for the device, nor read numbers that change from step to step, nor memory that
            others may free.
        model: whose gradients it leaves.
    """

    def __init__(self, run: Pass, model: LanguageModel) -> None:
        self._run, self._model = run, model
        self._repeat: Callable[[], Tensor] | None = None

    def __call__(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """What the pass does; the next call overwrites the new memory. All shapes must be those of the first call."""
        if self._repeat is None:
            self._inputs, self._targets = inputs.clone(), targets.clone()
            self._memory = [one.clone() for one in memory]
            with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []):
                self._repeat = capture(self._once, inputs.device)
            self._gradients = [(one, one.grad) for one in self._model.parameters()]
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        for own, given in zip(self._memory, memory, strict=True):
            if own is not given:
                own.copy_(given)
        loss = self._repeat()
        for parameter, gradient in self._gradients:
            if parameter.grad is None:  # where nothing could be recorded, it is new
                parameter.grad = gradient
        memory[:] = self._memory
        return loss.clone()

    def _once(self) -> Tensor:
        self._model.forget_gradients()  # so that the backward pass writes them and adds to none
        memory = list(self._memory)
        loss = self._run(self._inputs, self._targets, memory)
        for own, new in zip(self._memory, memory, strict=True):
            own.copy_(new)
        return loss
