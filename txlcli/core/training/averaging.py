"""Averages of a model's weights over training steps.

The update rules are those of torch.optim.swa_utils. Its AveragedModel is not used: it copies the whole module and
begins as the weights after a step, whereas these averages keep parameters only and may begin as the initial weights.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from txlcli.config.settings import TrainSettings


class Average:
    """Weights to evaluate, kept next to the trained ones in their dtype, fp32. This base class keeps no average."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self._parameters = parameters
        self.weights: dict[str, Tensor] = {}
        """The average by parameter name; empty before it begins: then the trained weights are evaluated."""
        self._steps = 0

    def update(self, step: int) -> None:
        """Include the weights after optimizer step number `step`."""

    def on_validation(self, loss_nats: float) -> None:
        """Take the loss of a validation into account."""

    def _begin(self) -> None:
        self.weights = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def _apply(self, rule: Callable[[list[Tensor], list[Tensor], int], None]) -> None:
        rule(list(self.weights.values()), list(self._parameters.values()), self._steps)
        self._steps += 1

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Give the model the average as its weights within this block, if there is one."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    @torch.no_grad()
    def _swap(self) -> None:
        # Swap contents, not storage: cuDNN and captured CUDA graphs hold the addresses of the weights.
        for name, value in self.weights.items():
            trained = self._parameters[name].clone()
            self._parameters[name].copy_(value)
            value.copy_(trained)

    def state(self) -> dict[str, Any]:
        """Return plain data for a checkpoint, next to `weights`."""
        return {"steps": self._steps}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        """Restore the average from a checkpoint; the model has its weights already."""
        self._steps = state["steps"]
        if weights:
            self.weights = {name: weights[name].to(parameter.device) for name, parameter in self._parameters.items()}


class Mean(Average):
    """Mean of the weights after every step later than step number `first`; None if it is not known yet."""

    def __init__(self, parameters: Mapping[str, Tensor], first: int | None) -> None:
        super().__init__(parameters)
        self.first = first

    def update(self, step: int) -> None:
        """Include the weights after a step; all steps have equal weight."""
        if self.weights or (self.first is not None and step > self.first):
            if not self.weights:
                self._begin()
            self._apply(get_swa_multi_avg_fn())


class AveragedSgd(Mean):
    """Mean of the weights after every step since the trigger (NT-ASGD of Merity et al. 2017, t0 = 0, lambda = 0).

    The trigger is the first validation whose loss is above the lowest loss more than `patience` validations before it.
    """

    def __init__(self, parameters: Mapping[str, Tensor], patience: int) -> None:
        super().__init__(parameters, None)
        self._patience = patience
        self._losses: list[float] = []

    def on_validation(self, loss_nats: float) -> None:
        if self.first is None:
            earlier = self._losses[: max(0, len(self._losses) - self._patience)]
            self.first = 0 if earlier and loss_nats > min(earlier) else None  # all steps from now on
            self._losses.append(loss_nats)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "losses": self._losses, "triggered": self.first is not None}

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().restore(state, weights)
        self._losses, self.first = state["losses"], 0 if state["triggered"] else None


class ExponentialAverage(Average):
    """Exponential moving average with the decay min(`decay`, (1 + n) / (10 + n)) at step n.

    It begins as the initial weights; the small decay of the first steps soon forgets them.
    """

    def __init__(self, parameters: Mapping[str, Tensor], decay: float) -> None:
        super().__init__(parameters)
        self._decay = decay
        self._begin()

    def update(self, step: int) -> None:
        """Include the weights after a step; later steps have more weight."""
        number = self._steps + 1
        self._apply(get_ema_multi_avg_fn(min(self._decay, (1 + number) / (10 + number))))


def make_average(parameters: Mapping[str, Tensor], settings: TrainSettings) -> Average:
    """Return the average of weights that train.average names."""
    if settings.average == "asgd":
        return AveragedSgd(parameters, settings.average_patience)
    if settings.average == "mean":
        return Mean(parameters, settings.schedule_steps)
    if settings.average == "exponential":
        return ExponentialAverage(parameters, settings.average_decay)
    return Average(parameters)
