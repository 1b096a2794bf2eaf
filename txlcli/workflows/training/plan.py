"""Says what a training run will do: its sizes, its text, its device, and if its layers are compiled."""

import dataclasses
from dataclasses import dataclass

import torch

from txlcli.config.settings import Settings, TrainSettings
from txlcli.core.kernels.compilation import compiler_problem, triton_problem
from txlcli.core.kernels.determinism import check_deterministic
from txlcli.core.kernels.device import check_precision, describe
from txlcli.core.measures.cost import Shares, step_flops_per_token
from txlcli.core.measures.gpus import expected_share
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import World, of_one_process
from txlcli.core.training.segments import TrainingSegments
from txlcli.data.token_store import TokenStore
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter

MIN_SECONDS = 120.0
"""Shortest time of a run, without a compiler, that pays for compiling its layers."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Plan of a training run: the beginning of the object that `--dry-run --json` prints."""

    recipe: str
    parameters: int
    vocab_size: int
    store: str | None
    """None if the corpus is not prepared."""
    train_tokens: int | None
    lanes: int
    seg_len: int
    mem_len: int | None
    """None for a recurrent state."""
    reread_len: int
    """Tokens before each segment that are read again."""
    steps: int
    """Up to the step that was asked for, or to the recipe's end."""
    max_steps: int
    epochs: float | None
    precision: str
    processes: int
    device: str
    folder: str

    def __str__(self) -> str:
        corpus = f"{self.store} ({self.train_tokens:,} tokens)" if self.store else "a corpus that is not prepared"
        steps = (
            f"{self.steps:,} steps" if self.steps == self.max_steps else f"{self.steps:,} of {self.max_steps:,} steps"
        )
        epochs = f" ({self.epochs:.3g} epochs)" if self.epochs is not None else ""
        memory = "recurrent state" if self.mem_len is None else f"memory {self.mem_len}"
        memory += f", {self.reread_len} tokens read again" if self.reread_len else ""
        return (
            f"{self.recipe}: {self.parameters:,} parameters (V = {self.vocab_size:,}) on {corpus}, batches of "
            f"{self.lanes} x {self.seg_len} tokens, {memory}, {steps}{epochs}, {self.precision}, {self.device}, into "
            f"{self.folder}"
        )


def plan(
    run: Run, text: tuple[TokenStore, TrainingSegments] | None, *, until_step: int | None, devices: str, processes: int
) -> Plan:
    """Return the plan of a training run on devices that are described in a few words."""
    settings = run.settings
    train = settings.train
    store, segments = text or (None, None)
    steps = min(until_step or train.max_steps, train.max_steps)
    return Plan(
        recipe=run.recipe_name,
        parameters=run.parameters,
        vocab_size=run.vocab_size,
        store=str(store.path) if store else None,
        train_tokens=store.info("train").tokens if store else None,
        lanes=train.batch_size,
        seg_len=train.seg_len,
        mem_len=None if settings.model.recurrent_state else train.mem_len,
        reread_len=train.reread_len,
        steps=steps,
        max_steps=train.max_steps,
        epochs=steps / segments.per_epoch if segments else None,
        precision=train.precision,
        processes=processes,
        device=devices,
        folder=str(run.directory),
    )


def flops_per_token(run: Run, shares: Shares | None = None) -> float:
    """Return the operations per predicted token of a step of a run."""
    return step_flops_per_token(run.settings.model, run.vocab_size, run.settings.train, shares)


def describe_devices(device: torch.device, processes: int) -> str:
    """Describe the devices of a training run in a few words."""
    return describe(device) if processes == 1 else f"{processes} processes, {describe(device)} each"


def check_device(settings: Settings, device: torch.device, *, processes: int) -> None:
    """Reject settings that a device does not support: precision, determinism, processes."""
    check_precision(settings.train.precision, device)
    if settings.train.deterministic:
        check_deterministic(device, processes=processes)
    if settings.train.parallel != "ddp" and processes == 1:
        raise UsageError(
            f'train.parallel = "{settings.train.parallel}" needs at least two processes; start with `processes` N or '
            "torchrun, or add `overrides` train.parallel=ddp"
        )


def decide_compile(
    run: Run, saved: Checkpoint | None, device: torch.device, world: World, *, last_step: int | None, reporter: Reporter
) -> TrainSettings:
    """Return the settings with train.compile = "auto" decided; a resumed run continues as before: it stays exact."""
    train = run.settings.train
    if train.compile != "auto" or device.type != "cuda" or run.settings.model.head_width is None:
        return train
    compiles = saved.state.get("compiled") if saved is not None else None
    if compiles is None:
        reason = _reason_against(run, device, world.size, last_step or train.max_steps)
        if reason is not None:
            reporter.say(f"layers are not compiled: {reason}")
        compiles = not world.any_of(reason is not None)
    return dataclasses.replace(train, compile="on" if compiles else "off")


def _reason_against(run: Run, device: torch.device, processes: int, steps: int) -> str | None:
    """Return why the layers should not be compiled; None if they should."""
    settings = run.settings
    train = of_one_process(settings.train, processes)
    if train.parallel == "fsdp":
        return 'train.parallel = "fsdp" divides their weights'
    if problem := triton_problem(device):
        return f"kernels of the compiler do not run; {problem}"
    step_flops = train.batch_size * train.seg_len * flops_per_token(run)
    rate = expected_share(settings.model, step_flops, device.type).share * peak_flops_per_s(device, train.precision)
    seconds = steps * step_flops / rate
    if seconds < MIN_SECONDS:
        return f"the run takes about {seconds:.0f} s without, and compiling up to half a minute; `compile` on compiles"
    return compiler_problem(device)
