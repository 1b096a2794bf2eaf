"""The learning rate of each step."""

import math

from txlcli.config.settings import TrainSettings


def scheduled_lr(settings: TrainSettings, step: int) -> float:
    """Return the learning rate of step number `step`, counted from 1, without the reductions of `Plateau`.

    Step n of the warm-up has the fraction n / warmup_steps. The released PyTorch code is one step behind during the
    warm-up, with its very first step at the full rate; the first step of the released TF code has rate 0.
    """
    floor, end = settings.min_lr_ratio, max(1, settings.schedule_steps)
    if settings.average == "mean" and step > end:
        return settings.average_lr_factor * scheduled_lr(settings, end)
    if step <= settings.warmup_steps:
        return settings.lr * step / settings.warmup_steps
    ratio = 1.0
    if settings.schedule == "cosine":
        start = settings.warmup_steps if settings.cosine_from == "warmup" else 0
        done = (step - 1 - start) / max(1, end - start)  # a short run may end within its warm-up
        ratio = floor + (1 - floor) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "wsd":
        ratio = floor + (1 - floor) * min(1.0, (end + 1 - step) / (settings.decay_share * end))
    elif settings.schedule == "inverse_sqrt":
        ratio = math.sqrt(max(settings.warmup_steps, 1) / step)
    return settings.lr * max(ratio, floor)


class Plateau:
    """Reduction of the learning rate when the validation loss stops falling; inactive for other schedules.

    torch's ReduceLROnPlateau is not used: it overwrites the learning rates of an optimizer, while this scale multiplies
    the scheduled rate, and resumes from two numbers.
    """

    def __init__(self, settings: TrainSettings) -> None:
        self._settings = settings
        self.scale = 1.0
        """Factor of the scheduled learning rate."""
        self._waited = 0

    def on_validation(self, *, improved: bool) -> None:
        """Reduce the learning rate if more than `plateau_patience` validations have not improved."""
        settings = self._settings
        if settings.schedule == "plateau":
            self._waited = 0 if improved else self._waited + 1
            if self._waited > settings.plateau_patience:
                self.scale = max(self.scale * settings.plateau_factor, settings.min_lr_ratio)
                self._waited = 0

    def state(self) -> dict[str, float]:
        """Return plain data for a checkpoint."""
        return {"scale": self.scale, "waited": self._waited}

    def restore(self, state: dict[str, float]) -> None:
        """Restore the state from a checkpoint; another schedule keeps its own rate."""
        if self._settings.schedule == "plateau":
            self.scale, self._waited = state["scale"], int(state["waited"])
