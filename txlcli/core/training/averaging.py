"""Averages of a model's weights over training steps.

The update rules are those of torch.optim.swa_utils. Its AveragedModel is not used: it copies the whole module and
begins as the weights after a step, whereas these averages keep parameters only and may begin as the initial weights.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn, get_swa_multi_avg_fn

from txlcli.config.train_settings import TrainSettings


class Average:
    """The weights to evaluate of `train.average`, kept next to the trained ones in their dtype, fp32.

    - "mean": mean of the weights after every step later than `train.average_from`.
    - "asgd": mean of the weights after every step since the trigger (NT-ASGD of Merity et al. 2017, t0 = 0,
      lambda = 0), the first validation whose loss is above the lowest one more than `train.average_patience`
      validations before it.
    - "exponential": moving average with the decay min(`train.average_decay`, (1 + n) / (10 + n)) at step n. It begins
      as the initial weights; the small decay of the first steps soon forgets them.

    A step that the loss scaling of fp16 skips counts, too, with the weights that it leaves.
    """

    def __init__(self, parameters: Mapping[str, Tensor], settings: TrainSettings) -> None:
        self._parameters = parameters
        self._settings = settings
        self.weights: dict[str, Tensor] = {}
        """The average by parameter name; empty before it begins: then the trained weights are evaluated."""
        self.first = settings.schedule_steps if settings.average == "mean" else None
        """Step after which a mean begins; None if it is not known yet."""
        self._steps = 0
        self._losses = list[float]()
        if settings.average == "exponential":
            self._begin()

    def _begin(self) -> None:
        self.weights = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    def update(self, step: int) -> None:
        """Include the weights after optimizer step number `step`."""
        if not self.weights and self.first is not None and step > self.first:
            self._begin()
        if not self.weights:
            return
        number = self._steps + 1
        if self._settings.average == "exponential":
            decay = min(self._settings.average_decay, (1 + number) / (10 + number))
            rule = get_ema_multi_avg_fn(decay)
        else:
            rule = get_swa_multi_avg_fn()
        rule(list(self.weights.values()), list(self._parameters.values()), self._steps)
        self._steps = number

    def on_validation(self, loss_nats: float) -> None:
        """Take the loss of a validation into account."""
        if self._settings.average != "asgd" or self.first is not None:
            return
        earlier = self._losses[: max(0, len(self._losses) - self._settings.average_patience)]
        if earlier and loss_nats > min(earlier):
            self.first = 0  # all steps from now on
        self._losses.append(loss_nats)

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
        state: dict[str, Any] = {"steps": self._steps}
        if self._settings.average == "asgd":
            state["losses"] = self._losses
            state["triggered"] = self.first is not None
        return state

    def restore(self, state: dict[str, Any], weights: dict[str, Tensor], *, step: int) -> None:
        """Restore the average, whose weights are where the model has its own, from the checkpoint of a step.

        A mean that the settings now begin after a later step is dropped, and begins there.
        """
        if self.first is not None and step < self.first:
            return
        self._steps = state["steps"]
        self._losses = state.get("losses", [])
        if state.get("triggered"):
            self.first = 0
        if weights:
            self.weights = {name: weights[name] for name in self._parameters}
