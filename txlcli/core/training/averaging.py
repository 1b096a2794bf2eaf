"""The mean of a model's weights over the steps of its training."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.private import lerp_all


class Average(ABC):
    """The weights to evaluate, kept beside those in training and in their number format, which is fp32.

    Args:
        model: on its device; its weights are the first of the mean where that begins at once.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self._values: dict[str, Tensor] = {}  # empty until the mean begins
        self.steps = 0  # updates of the mean

    @property
    def active(self) -> bool:
        """Whether there is a mean to evaluate; before, the weights in training stand for it."""
        return self.steps > 0

    @abstractmethod
    def update(self) -> None:
        """Take the weights that a step has left."""

    @abstractmethod
    def see(self, loss_nats: float) -> None:
        """Take note of one validation."""

    def _begin(self) -> None:
        self._values = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def _mix(self, share: float) -> None:
        """Move the mean by this share towards the weights."""
        self.steps += 1
        lerp_all(list(self._values.values()), list(self._parameters.values()), share)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model has the mean for its weights, once there is one, and its own again afterwards."""
        if not self.active:
            yield
            return
        self._exchange()
        try:
            yield
        finally:
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        # Contents change hands, not storage: what knows a weight's address (cuDNN, a captured graph) stays right.
        for name, parameter in self._parameters.items():
            own = parameter.clone()
            parameter.copy_(self._values[name])
            self._values[name].copy_(own)

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps: the mean by the parameters' names, nothing before it begins."""
        return self._values if self.active else {}

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps beside the tensors: plain data."""
        return {"steps": self.steps}

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint; the model has its weights already."""
        self.steps = state["steps"]
        if tensors:
            self._values = {name: tensors[name].to(parameter.device) for name, parameter in self._parameters.items()}


class NoAverage(Average):
    """The weights in training are those to evaluate."""

    def update(self) -> None:
        """Nothing to take."""

    def see(self, loss_nats: float) -> None:
        """Nothing depends on it."""


class AveragedSgd(Average):
    """The mean of the weights after every step since the trigger (NT-ASGD of Merity et al. 2017, t0 = 0, lambda = 0).

    The trigger is the first validation whose loss is above the lowest of those more than `patience` validations before
    it.
    """

    def __init__(self, model: nn.Module, patience: int) -> None:
        super().__init__(model)
        self._patience = patience
        self._losses: list[float] = []
        self.triggered = False

    def see(self, loss_nats: float) -> None:
        """The weights after the next step are the first of the mean where this loss is the trigger."""
        if self.triggered:
            return
        old = self._losses[: max(0, len(self._losses) - self._patience)]
        self._losses.append(loss_nats)
        if old and loss_nats > min(old):
            self.triggered = True
            self._begin()

    def update(self) -> None:
        """Every step counts the same."""
        if self.triggered:
            self._mix(1 / (self.steps + 1))

    def state(self) -> dict[str, Any]:
        """The losses up to the trigger, too."""
        return {**super().state(), "losses": self._losses, "triggered": self.triggered}

    def restore(self, state: dict[str, Any], tensors: dict[str, Tensor]) -> None:
        """Go on from a checkpoint; the model has its weights already."""
        super().restore(state, tensors)
        self._losses, self.triggered = list(state["losses"]), state["triggered"]
        if self.triggered and not tensors:
            self._begin()


class ExponentialAverage(Average):
    """A mean that keeps `decay` of itself at every step, and (1 + n) / (10 + n) at step n where that is less.

    It begins as the initial weights, which the small shares of the first steps soon leave behind.
    """

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model)
        self._decay = decay
        self._begin()

    def update(self) -> None:
        """Later steps count more."""
        number = self.steps + 1
        self._mix(1 - min(self._decay, (1 + number) / (10 + number)))

    def see(self, loss_nats: float) -> None:
        """Nothing depends on it."""


def make_average(model: nn.Module, settings: TrainSettings) -> Average:
    """The mean that [train] asks for."""
    if settings.average == "asgd":
        return AveragedSgd(model, settings.average_patience)
    if settings.average == "exponential":
        return ExponentialAverage(model, settings.average_decay)
    return NoAverage(model)
