"""The optimizer, the course of its learning rate."""

import math

import torch
from torch import Tensor, nn

from txlcli.config.settings import TrainSettings


def make_optimizer(model: nn.Module, settings: TrainSettings) -> torch.optim.Optimizer:
    """Adam or SGD over all parameters, fused into one pass."""
    if settings.optimizer == "sgd":
        return torch.optim.SGD(
            model.parameters(),
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
            fused=True,
        )
    adam = torch.optim.Adam(model.parameters(), lr=settings.lr, weight_decay=settings.weight_decay, fused=True)
    for parameter in model.parameters():
        adam.state[parameter] = _moments(parameter)
    return adam


def _moments(parameter: Tensor) -> dict[str, Tensor]:
    """Adam's state before its first step, which would make it in the gaps that a backward pass leaves in memory.

    Made at once, it leaves none, and a model that is too large fails before it reads a text.
    """
    step = torch.zeros((), dtype=torch.float32, device=parameter.device)
    return {"step": step, "exp_avg": torch.zeros_like(parameter), "exp_avg_sq": torch.zeros_like(parameter)}


def scheduled_lr(settings: TrainSettings, step: int) -> float:
    """The learning rate of update number `step`, counted from 1, apart from what a plateau takes off.

    Warm-up gives update n the share n / warmup_steps. The released PyTorch code is one update behind there, with its
    very first update at the full rate; the first update of the released TF code has rate 0.
    """
    floor = settings.min_lr_ratio
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    share = 1.0
    if settings.schedule == "cosine":
        hidden = settings.warmup_steps if settings.cosine_from == "warmup" else 0
        done = (step - 1 - hidden) / max(1, settings.max_steps - hidden)  # a trial may end within its warm-up
        share = floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "inverse_sqrt":
        share = math.sqrt(max(settings.warmup_steps, 1) / step)
    return settings.lr * max(share, floor)


class Plateau:
    """Lowers the learning rate when the validation loss has not fallen for a while; idle for other schedules."""

    def __init__(self, settings: TrainSettings) -> None:
        self._active = settings.schedule == "plateau"
        self._factor, self._patience, self._floor = (
            settings.plateau_factor,
            settings.plateau_patience,
            settings.min_lr_ratio,
        )
        self.scale = 1.0
        self.waited = 0

    def see(self, *, improved: bool) -> None:
        """Take note of one validation."""
        if not self._active:
            return
        self.waited = 0 if improved else self.waited + 1
        if self.waited > self._patience:
            self.scale = max(self.scale * self._factor, self._floor)
            self.waited = 0

    def state(self) -> dict[str, float]:
        """What a checkpoint keeps."""
        return {"scale": self.scale, "waited": self.waited}

    def restore(self, state: dict[str, float]) -> None:
        """Go on from a checkpoint; another schedule goes on at its own rate."""
        if self._active:
            self.scale, self.waited = state["scale"], int(state["waited"])
