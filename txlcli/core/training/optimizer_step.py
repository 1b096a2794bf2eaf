"""A step of gradient descent: the loss scaled for fp16, the gradients clipped, the optimizer."""

from typing import Any

import torch
from torch import Tensor

from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.optimizer import make_optimizer

LEAST_SCALE = 1.0
"""Of the loss in fp16: it begins at 65,536, and each step that is left out halves it."""


class Descent:
    """Takes the steps of a training; all but the rate of each comes from its settings.

    Args:
        model: on its device.
        settings: the recipe's [train] section.
    """

    def __init__(self, model: LanguageModel, settings: TrainSettings) -> None:
        self._model, self._clip = model, settings.clip
        self.optimizer = make_optimizer(model, settings)
        self._scaler = torch.amp.GradScaler(model.device.type, enabled=settings.precision == "fp16")

    @property
    def leaves_out_steps(self) -> bool:
        """Whether steps of gradients that are not finite are left out, as fp16 needs it now and then."""
        return self._scaler.is_enabled()

    @property
    def is_stuck(self) -> bool:
        """Whether gradients overflow although the loss is not scaled up any more; asking waits for the device."""
        return self._scaler.is_enabled() and self._scaler.get_scale() < LEAST_SCALE

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a loss (0-d) to those that are there."""
        self._scaler.scale(loss).backward()

    def clip(self) -> Tensor:
        """Scale all gradients together so that their norm is at most train.clip; gives their norm before (0-d)."""
        self._scaler.unscale_(self.optimizer)
        norm = torch.nn.utils.get_total_norm([one.grad for one in self._model.parameters() if one.grad is not None])
        if self._clip is not None:
            torch.nn.utils.clip_grads_with_norm_(self._model.parameters(), self._clip, norm)
        return norm

    def step(self, lr: float) -> None:
        """Move the weights along the clipped gradients, which are forgotten."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self._model.forget_gradients()

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps besides the optimizer's tensors: the scale, if there is one."""
        return self._scaler.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint; where nothing was scaled, a scale that is needed now begins as in a new run."""
        if state:
            self._scaler.load_state_dict(state)
