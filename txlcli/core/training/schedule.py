"""The learning rate of each step."""

import math

from txlcli.config.train_settings import TrainSettings


def scheduled_lr(settings: TrainSettings, step: int, factor: float = 1.0, scale: float = 1.0) -> float:
    """Return the learning rate of step number `step`, counted from 1.

    `factor` is that of a group of parameters, and `scale` what validations have `reduced` the rate to: both multiply
    the peak, not the lowest rate, which is the same for all.

    Step n of the warm-up has the fraction n / warmup_steps. The released PyTorch code is one step behind during the
    warm-up, with its very first step at the full rate; the first step of the released TF code has rate 0.
    """
    floor = min(settings.min_lr_ratio, factor)
    end = settings.schedule_steps
    if settings.average == "mean" and step > end:
        return settings.average_lr_factor * scheduled_lr(settings, end, factor, scale)
    peak = max(factor * scale, floor)
    if step <= settings.warmup_steps:
        return peak * settings.lr * step / settings.warmup_steps
    ratio = peak
    if settings.schedule == "cosine":
        start = settings.warmup_steps if settings.cosine_from == "warmup" else 0
        steps = settings.cosine_steps - start
        done = min(1.0, (step - 1 - start) / max(1, steps))  # a short run may end within its warm-up
        ratio = floor + (peak - floor) * (1 + math.cos(math.pi * done)) / 2
    elif settings.schedule == "wsd":
        ratio = floor + (peak - floor) * min(1.0, (end + 1 - step) / (settings.decay_share * end))
    elif settings.schedule == "inverse_sqrt":
        ratio = peak * math.sqrt(max(settings.warmup_steps, 1) / step)
    return settings.lr * max(ratio, floor)


def reduced(settings: TrainSettings, scale: float, stale: int) -> float:
    """Return the factor of the peak rate, `scale` before, after so many validations in a row without improvement.

    torch's ReduceLROnPlateau is not used: it overwrites the learning rates of an optimizer, while this factor resumes
    from one number.
    """
    if settings.schedule != "plateau" or stale == 0:
        return scale
    if stale % (settings.plateau_patience + 1) > 0:
        return scale
    return scale * settings.plateau_factor
