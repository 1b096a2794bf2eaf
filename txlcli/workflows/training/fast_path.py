"""Decides if a training run compiles the layers of its model on a GPU."""

import dataclasses

import torch

from txlcli.core.kernels.compilation import check_compiler, triton_problem
from txlcli.core.measures.gpus import expected_share
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import World, of_one_process
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import plan

MIN_SECONDS = 120.0
"""Shortest time of a run, without a compiler, that pays for compiling its layers."""


def decide_compile(
    run: Run, saved: Checkpoint | None, device: torch.device, world: World, *, last_step: int | None, reporter: Reporter
) -> Run:
    """Return the run with train.compile = "auto" decided; a resumed run continues as before, so that it stays exact."""
    train = run.settings.train
    if train.compile != "auto" or device.type != "cuda" or run.settings.model.head_width is None:
        return run
    compiles = saved.state.get("compiled") if saved is not None else None
    if compiles is None:
        reason = _reason_against(run, device, world.size, last_step or train.max_steps)
        if reason is not None:
            reporter.say(f"layers are not compiled: {reason}")
        compiles = not world.any_of(reason is not None)
    decided = dataclasses.replace(train, compile="on" if compiles else "off")
    return dataclasses.replace(run, settings=dataclasses.replace(run.settings, train=decided))


def _reason_against(run: Run, device: torch.device, processes: int, steps: int) -> str | None:
    """Return why the layers should not be compiled; None if they should."""
    settings = run.settings
    train = of_one_process(settings.train, processes)
    if train.parallel == "fsdp":
        return 'train.parallel = "fsdp" divides their weights'
    if problem := triton_problem(device):
        return f"kernels of the compiler do not run; {problem}"
    step_flops = train.batch_size * train.seg_len * plan.flops_per_token(run)
    rate = expected_share(settings.model, step_flops, device.type).share * peak_flops_per_s(device, train.precision)
    seconds = steps * step_flops / rate
    if seconds < MIN_SECONDS:
        return f"the run takes about {seconds:.0f} s without, and compiling up to half a minute; `compile` on compiles"
    try:
        check_compiler(device, "training is slower without")
    except UsageError as error:
        return str(error)
    return None
