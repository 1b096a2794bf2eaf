"""The learning rate: warm-up, the schedule, and its reduction when the validation loss stops falling."""

import math

from txlcli.config.settings import TrainSettings


def scheduled_lr(settings: TrainSettings, step: int) -> float:
    """Return the learning rate of step number `step`, counted from 1, without the reductions of `Plateau`.

    Step n of the warm-up has the fraction n / warmup_steps. The released PyTorch code is one step behind during the
    warm-up, with its very first step at the full rate; the first step of the released TF code has rate 0.
    """
    floor = settings.min_lr_ratio
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    ratio = 1.0
    if settings.schedule == "cosine":
        start = settings.warmup_steps if settings.cosine_from == "warmup" else 0
        done = (step - 1 - start) / max(1, settings.max_steps - start)  # a short run may end within its warm-up
        ratio = floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "inverse_sqrt":
        ratio = math.sqrt(max(settings.warmup_steps, 1) / step)
    return settings.lr * max(ratio, floor)


class Plateau:
    """Reduction of the learning rate when the validation loss stops falling; inactive for other schedules.

    torch's ReduceLROnPlateau is not used: it overwrites the learning rates of an optimizer, while this scale multiplies
    the scheduled rate, and resumes from two numbers.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._active = settings.schedule == "plateau"
        self._factor, self._patience = settings.plateau_factor, settings.plateau_patience
        self._floor = settings.min_lr_ratio
        self.scale = 1.0
        """Factor of the scheduled learning rate."""
        self._waited = 0

    def on_validation(self, *, improved: bool) -> None:
        """Reduce the learning rate if more than `plateau_patience` validations have not improved."""
        if not self._active:
            return
        self._waited = 0 if improved else self._waited + 1
        if self._waited > self._patience:
            self.scale = max(self.scale * self._factor, self._floor)
            self._waited = 0

    def state(self) -> dict[str, float]:
        """Return plain data for a checkpoint."""
        return {"scale": self.scale, "waited": self._waited}

    def restore(self, state: dict[str, float]) -> None:
        """Restore the state from a checkpoint; another schedule keeps its own rate."""
        if self._active:
            self.scale, self._waited = state["scale"], int(state["waited"])
