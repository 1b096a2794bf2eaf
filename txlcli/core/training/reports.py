"""What a training tells of itself."""

import time
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor


@dataclass(frozen=True)
class StepReport:
    """The training since the report before."""

    kind: ClassVar = "train"
    step: int
    epoch: float
    loss_nats: float
    """Mean over the tokens since the report before."""
    lr: float
    grad_norm: float
    """Norm of the whole gradient of the last step, before clipping."""
    tokens_per_s: float


@dataclass(frozen=True)
class ValidReport:
    """One validation."""

    kind: ClassVar = "valid"
    step: int
    epoch: float
    loss_nats: float
    """Mean over the tokens scored."""
    tokens: int
    seconds: float
    best: bool
    averaged: bool
    """Whether it read the mean of the weights (train.average), not those of the last step."""


Report = StepReport | ValidReport


class Interval:
    """The steps from one report to the next; their losses stay on the device until they are asked for."""

    def __init__(self, device: torch.device) -> None:
        self._nats = torch.zeros((), device=device, dtype=torch.float64)
        self.grad_norm = torch.zeros((), device=device)
        self.largest_norm = torch.zeros((), device=device)
        self.tokens = 0
        self._started = time.perf_counter()

    def add(self, mean_loss: Tensor, grad_norm: Tensor, tokens: int) -> None:
        """Count one step: its mean loss and the norm of its gradient (0-d), its tokens."""
        self.grad_norm = grad_norm
        self.largest_norm = torch.maximum(self.largest_norm, grad_norm)  # NaN, where there was one
        self._nats += mean_loss.double() * tokens
        self.tokens += tokens

    def mean(self) -> tuple[float, float]:
        """The mean loss in nats, and tokens per second."""
        nats = float(self._nats)  # waits for the device, so the clock below is honest
        return nats / self.tokens, self.tokens / (time.perf_counter() - self._started)
