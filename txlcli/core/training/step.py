"""The forward and backward pass of a training step: in its number format, as written, compiled, or recorded.

Axes: B lanes, L segment, M memory.
"""

import contextlib

import torch
from torch import Tensor

from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.device import autocast
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.training.data_parallel import Objective
from txlcli.core.training.graph_step import RecordedPass
from txlcli.core.training.optimizer_step import Descent


class TrainingPass:
    """Adds the gradients of some lanes of a step.

    Args:
        model: on its device.
        settings: the recipe's [train] section.
        objective: of the model.
        descent: scales the loss.
        processes: among which all lanes are divided.
    """

    def __init__(
        self, model: LanguageModel, settings: TrainSettings, objective: Objective, descent: Descent, *, processes: int
    ) -> None:
        self._model, self._settings, self._objective, self._descent = model, settings, objective, descent
        self._processes = processes
        self._recorded = RecordedPass(lambda *one: self._run(*one, progress=0.0), model)

    def __call__(self, inputs: Tensor, targets: Tensor, memory: Memory, *, progress: float) -> Tensor:
        """The mean loss (0-d) of inputs and targets, (B, L) each.

        Args:
            inputs: of these lanes.
            targets: of these lanes.
            memory: what the segment before has left; what this one leaves takes its place.
            progress: share of the steps that are taken; auxiliary losses ask for it.
        """
        if self._settings.cuda_graph and inputs.shape[1] == self._settings.seg_len and not self._grows(memory):
            return self._recorded(inputs, targets, memory)  # as almost all steps are
        return self._run(inputs, targets, memory, progress=progress)

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """The mean loss (0-d) of inputs and targets, (B, L) each, by the weights as they are; changes nothing."""
        model, settings = self._model, self._settings
        was_training = model.training
        model.eval()
        try:
            with autocast(model.device, settings.precision), model.uncompiled():
                hidden, _ = model(inputs, memory, mem_len=settings.mem_len)
                return model.losses(hidden, targets).mean()
        finally:
            model.train(was_training)

    def _run(self, inputs: Tensor, targets: Tensor, memory: Memory, *, progress: float) -> Tensor:
        settings = self._settings
        with autocast(self._model.device, settings.precision), self._as_fits(memory):
            objective, loss, memory[:] = self._objective(
                inputs, targets, memory, mem_len=settings.mem_len, part=settings.loss_part, progress=progress
            )
        share = len(inputs) / settings.batch_size
        # Nobody but the backward pass holds the memory before any more: it lets go of it layer by layer.
        self._descent.backward(objective * (share * self._processes))
        return loss.detach()

    def _as_fits(self, memory: Memory) -> contextlib.AbstractContextManager[object]:
        """While memory grows it has another length at each step: no shape to compile for."""
        if self._settings.compile and self._grows(memory):
            return self._model.uncompiled()
        return contextlib.nullcontext()

    def _grows(self, memory: Memory) -> bool:
        """Whether the memory of a model with attention is not full yet."""
        return memory[0].shape[1] < self._settings.mem_len
