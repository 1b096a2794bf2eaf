"""Says which settings of a training run would fit, after memory ran out."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from itertools import product
from typing import get_args

import torch

from txlcli.config.train_settings import Parallel, Recompute, TrainSettings
from txlcli.core.kernels.device import available_bytes, used_by_others
from txlcli.core.training.loop import Training
from txlcli.errors import RecipeError, TrainingError
from txlcli.system.memory import format_size, is_out_of_memory, requested_size
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training.plan import Plan

USABLE = 0.8
"""Share of the memory that a forecast may fill; single operations need a workspace."""
MIN_OTHERS = 2 << 30
"""Bytes that other processes use on a GPU before an error reports them; this one's libraries need up to 1 GiB."""
MAX_SHOWN = 2
"""Largest number of suggestions."""


@contextmanager
def explained(
    plan: Plan,
    *,
    training: Training | None = None,
    available: Callable[[torch.device], int | None] = available_bytes,
    others: Callable[[torch.device], int] = used_by_others,
) -> Iterator[None]:
    """Raise a TrainingError with settings that would fit if memory runs out in the block."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        error.__traceback__ = None  # which holds the tensors of the block
        what = f"out of memory{requested_size(error)}"
        batch_size = plan.run.settings.train.valid_batch_size
        if training and training.valid and training.validation_is_due() and batch_size > 1:
            raise TrainingError(
                f"{what} in the validation after step {training.step:,}; resume with `overrides` "
                f"train.valid_batch_size={batch_size // 2}"
            ) from error
        advised = advise(plan, available(plan.device))
        size = others(plan.device)
        if size > MIN_OTHERS:
            what += f"; other processes use {format_size(size)} of the GPU (nvidia-smi lists them)"
        raise TrainingError(f"{what}; {advised}") from error


def warn(plan: Plan, reporter: Reporter, *, available: Callable[[torch.device], int | None] = available_bytes) -> None:
    """Tell the user if a step needs more than the memory of a CPU: the system would kill the process, silently."""
    free = available(plan.device) if plan.device.type == "cpu" else None
    if free is None:
        return
    share = free // plan.processes
    if plan.step_bytes(plan.run.settings.train).total > share:
        reporter.say(f"memory may run out, and the system then ends txl: {advise(plan, share)}")


def advise(plan: Plan, available: int | None) -> str:
    """Return the next step after memory ran out: settings of the same training run that need less.

    `available` are the bytes that this process can use; None if the system does not say.
    """
    train = plan.run.settings.train
    needed = plan.step_bytes(train).total
    limit = USABLE * min(available or needed, needed)
    needs = f"a step needs about {format_size(needed)}"
    if plan.processes > 1:
        needs = f"a step of each process needs about {format_size(needed)}"
    if available:
        needs += f" of {format_size(available)}"
    fitting: list[str] = []
    for smaller in smaller_steps(train, plan.processes):
        size = plan.step_bytes(smaller).total
        if size <= limit:
            fitting.append(f"{_options(train, smaller)} (about {format_size(size)})")
        if len(fitting) == MAX_SHOWN:
            break
    if fitting:
        return f"{needs}; try {', or '.join(fitting)}"
    return f"{needs}, and no division of the batch fits; use shorter lengths or a smaller model"


def smaller_steps(train: TrainSettings, processes: int) -> Iterator[TrainSettings]:
    """Yield settings that compute the same loss with less memory: the least division of the batch first.

    Several processes may then divide more of the state.
    """
    recomputes: tuple[Recompute, ...] = (False, True, "layers")  # each needs less than the one before, as modes do
    recomputes = recomputes[recomputes.index(train.recompute) :]
    modes: tuple[Parallel, ...] = (train.parallel,)
    if processes > 1:
        all_modes = get_args(Parallel)
        modes = all_modes[all_modes.index(train.parallel) :]
    divisions = range(train.accumulate, train.batch_size // processes + 1)
    for parallel, accumulate, recompute in product(modes, divisions, recomputes):
        if train.batch_size % (accumulate * processes) == 0:
            with suppress(RecipeError):  # such as fp16 with fsdp, or recompute = true with the reference
                smaller = replace(train, parallel=parallel, accumulate=accumulate, recompute=recompute)
                if smaller != train:
                    yield smaller


def _options(before: TrainSettings, after: TrainSettings) -> str:
    """Return the options that lead from one of these settings to the other."""
    options = []
    for name in ("parallel", "accumulate", "recompute"):
        value = getattr(after, name)
        if value != getattr(before, name):
            options.append(f"`overrides` train.{name}={str(value).lower()}")
    return " ".join(options)
