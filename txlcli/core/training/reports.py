"""Reports of a training run to its caller."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from txlcli.core.kernels.device import float64_device


@dataclass(frozen=True)
class StepReport:
    """Training steps since the previous report."""

    kind: ClassVar = "train"
    step: int
    epoch: float
    loss_nats: float
    """Mean over the tokens since the previous report."""
    lr: float
    grad_norm: float
    """Norm of the whole gradient of the last step, before clipping."""
    tokens_per_s: float
    skipped_steps: int = 0
    """Steps without an update, because the loss or the gradient was not finite (train.skip_nonfinite)."""
    penalty: float = 0.0
    """Mean of what the objective adds to the loss, if hidden states are penalized (train.activation_penalty)."""
    path: str = ""
    """How the steps were computed: attention, compiled or not, captured or not."""
    after: int = 0
    """Step before the first one of the report."""


@dataclass(frozen=True)
class ValidReport:
    """One validation."""

    kind: ClassVar = "valid"
    step: int
    epoch: float
    loss_nats: float
    """Mean over the scored tokens."""
    tokens: int
    seconds: float
    best: bool
    averaged: bool
    """True if the average of the weights was scored (train.average), not the weights of the last step."""
    after: int = 0
    """Step of the validation before."""


Report = StepReport | ValidReport


class Interval:
    """Steps since the previous report; their losses stay on the device until the report reads them.

    A resumed run continues the interval that its checkpoint saved; values of another type raise an error here.
    """

    def __init__(
        self,
        device: torch.device,
        clock: Callable[[], float],
        *,
        after: int = 0,
        sums: Sequence[float] = (0.0, 0.0),
        tokens: int = 0,
        skipped: int = 0,
    ) -> None:
        self.after = int(after)
        """Step before the first one of the interval."""
        self.tokens = int(tokens)
        self.skipped = int(skipped)
        """Steps without an update."""
        self._sums = torch.tensor(sums, device=float64_device(device), dtype=torch.float64).view(2)
        self.grad_norm = torch.zeros((), device=device)
        """Of the last step, 0-d."""
        self.max_grad_norm = torch.zeros((), device=device)
        """Largest of all steps, 0-d; NaN if one of them is NaN."""
        self._clock = clock
        self.restart_clock()

    def restart_clock(self) -> None:
        """Time the steps from now on only."""
        self._started = self._clock()
        self._tokens_before = self.tokens

    def exclude(self, seconds: float) -> None:
        """Leave out time that was not spent on steps."""
        self._started += seconds

    @property
    def has_steps(self) -> bool:
        """True if steps were added since the clock was started."""
        return self.tokens > self._tokens_before

    def add(self, means: Tensor, grad_norm: Tensor, tokens: int) -> None:
        """Add one step: its mean loss and what was added to it, (2,), the norm of its gradient (0-d), its tokens."""
        self.grad_norm = grad_norm
        self.max_grad_norm = torch.maximum(self.max_grad_norm, grad_norm)
        self._sums += means.to(self._sums.device).double() * tokens
        self.tokens += tokens

    def means(self) -> tuple[float, float, float]:
        """Return the mean loss in nats, the mean of what was added to it, and tokens per second."""
        nats, added = self._sums.tolist()  # waits for the device, so that only finished steps are timed
        seconds = self._clock() - self._started
        return nats / self.tokens, added / self.tokens, (self.tokens - self._tokens_before) / seconds

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint saves."""
        return {"after": self.after, "sums": self._sums.tolist(), "tokens": self.tokens, "skipped": self.skipped}
