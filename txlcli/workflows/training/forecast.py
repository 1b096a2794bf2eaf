"""Forecasts memory and time of a training run without starting it: on this machine, and on 1 to 512 GPUs.

This machine need not have these GPUs.
"""

import dataclasses
import math
import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import Settings, TrainSettings
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.forecast import (
    FLOAT,
    StepBytes,
    logit_bytes,
    parameters_by_part,
    snapshot_bytes,
    step_bytes,
)
from txlcli.core.measures.gpus import CPU_SHARE, ExpectedShare, expected_share
from txlcli.core.measures.timing import peak_flops_per_s, time_training
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.loop import new_model
from txlcli.core.training.optimizer import named_groups
from txlcli.core.training.segments import band_shares
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError
from txlcli.runs.run_directory import Run
from txlcli.workflows.options import ScaleOptions, TrainOptions
from txlcli.workflows.training import initial_weights, start
from txlcli.workflows.training import plan as plans
from txlcli.workflows.training.out_of_memory import USABLE
from txlcli.workflows.workspace import Workspace

MAX_TIMED_S = 4.0
"""Longest time that the timing of training steps may be expected to take."""
MAX_TIMED_BYTES = 2**30
"""Most memory that a timed training step may need."""
TIMED_STEPS = 3
GPU = torch.device("cuda")
MAX_DEVICES = 512
"""Largest number of devices in the table of a recipe."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in the operations of a step."""
ALL_REDUCE = 2
"""Times that an all-reduce sends nearly all gradients around the ring."""
PASSES = {"ddp": ALL_REDUCE, "zero": ALL_REDUCE + 1, "fsdp": 3}
"""Times that a step sends nearly all weights or gradients around the ring, counted in fp32: zero sends the updated
weights, too; fsdp sends the weights twice, and the gradients once."""


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A training run that is not started."""

    run: Run
    store: TokenStore | None
    """None if it is missing and the recipe declares the vocabulary size of its benchmark."""
    plan: plans.Plan

    @cached_property
    def flops_per_token(self) -> float:
        """Operations per predicted token of a step; without a store, the bands have shares by Zipf's law."""
        cut = bands(self.run.settings.model, self.run.vocab_size)
        return plans.flops_per_token(self.run, band_shares(cut, self.store.ids("train")) if self.store else None)

    def expected_share(self, train: TrainSettings, device: torch.device) -> ExpectedShare:
        """Return the share of the peak rate that a step of one process (`of_one_process`) is expected to reach."""
        step_flops = train.batch_size * train.seg_len * self.flops_per_token
        expected = expected_share(self.run.settings.model, step_flops, device.type)
        # The forward pass of recomputed layers is one part of four, and no part of the operations that are needed.
        return expected._replace(share=expected.share * (0.75 if train.recompute == "layers" else 1))


@dataclass(frozen=True, kw_only=True)
class TrainingForecast:
    """Plan of a training run, and its cost on this machine."""

    plan: plans.Plan
    parameters_by_part: dict[str, int]
    step_bytes: StepBytes
    """Of one process."""
    snapshot_bytes: int
    training_flops_per_token: float
    tails: int
    """Number of tail bands."""
    tails_by: str
    """Where the shares of their tokens come from."""
    training_flops: float
    peak_flops_per_s: float
    share_of_peak: float
    share_source: str
    """The measurement of another machine that the share is from, if a step was not timed; empty on a CPU."""
    step_was_timed: bool
    tokens_per_s: float
    seconds: float
    published: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl train --dry-run --json` prints."""
        own = dataclasses.asdict(self) | {"step_bytes": self.step_bytes.to_json()}
        return own.pop("plan") | own


@dataclass(frozen=True, kw_only=True)
class DeviceCost:
    """Cost of a training run on a number of GPUs; times are None without their speed, `fits` without their memory."""

    devices: int
    batch_size_per_device: int
    share_of_peak: float
    share_source: str
    """The measurement that the share is from."""
    device_bytes: dict[str, int]
    """Bytes of a step on the GPU with the largest part of the batch, by purpose, and their total."""
    exchanged_bytes: int
    """Bytes that each GPU sends, and receives, in a step."""
    step_s: float | None
    tokens_per_s: float | None
    seconds: float | None
    fits: bool | None


@dataclass(frozen=True, kw_only=True)
class ScaleForecast:
    """Facts that do not depend on the number of GPUs, and the cost on each number."""

    recipe: str
    parameters: int
    vocab_size: int
    precision: str
    steps: int
    batch_size: int
    accumulate: int
    device_memory_bytes: float | None
    usable_share: float = USABLE
    bandwidth_bytes_per_s: float | None
    device_flops_per_s: float | None
    training_flops_per_token: float
    parallel: str
    by_devices: tuple[DeviceCost, ...]


def run(recipe_source: str | None, options: TrainOptions, workspace: Workspace, *, processes: int) -> TrainingForecast:
    """Return the plan of a training run and its cost; no run is made."""
    device = pick_device(workspace.device)
    described = plans.describe_devices(device, processes)
    planned = plan_run(recipe_source, options, workspace, described, processes=processes)
    settings, vocab_size = planned.run.settings, planned.run.vocab_size
    train = settings.train
    plans.check_device(settings, device, processes=processes)
    of_one = of_one_process(train, processes)
    needed = step_bytes(settings.model, vocab_size, of_one, device=device, processes=processes)
    flops = planned.flops_per_token
    peak = peak_flops_per_s(device, train.precision, seconds=time.thread_time)
    timed = timed_share_of_peak(settings.model, vocab_size, of_one, device=device, peak=peak, needed_bytes=needed.total)
    expected, source = planned.expected_share(of_one, device)
    share = timed or expected
    devices = 1 if device.type == "cpu" else processes  # processes on a CPU share its cores
    rate = devices * share * peak / flops
    tokens = planned.plan.steps * train.batch_size * train.seg_len
    return TrainingForecast(
        plan=planned.plan,
        parameters_by_part=parameters_by_part(settings.model, vocab_size),
        step_bytes=needed,
        snapshot_bytes=snapshot_bytes(settings.model, vocab_size, train, needed, processes),
        training_flops_per_token=flops,
        tails=len(settings.model.cutoffs),
        tails_by="the store's text" if planned.store else "Zipf's law",
        training_flops=tokens * flops,
        peak_flops_per_s=peak,
        share_of_peak=share,
        share_source="" if timed else source,
        step_was_timed=timed is not None,
        tokens_per_s=rate,
        seconds=tokens / rate,
        published=recipe.to_keys(settings.published),
    )


def plan_run(
    recipe_source: str | None, options: TrainOptions, workspace: Workspace, devices: str, *, processes: int
) -> PlannedRun:
    """Check a training run as `start.train` does, except for its devices, and plan it."""
    name, settings = start.load_settings(recipe_source, options, workspace.runs_dir)
    directory = next(start.new_directories(name, options, workspace.runs_dir))
    store = _store_if_prepared(settings, workspace)
    if options.begin_from is not None and store is not None:
        initial_weights.read(options.begin_from, settings.model, store, workspace)
    text = (store, start.read_splits(settings, store, workspace.reporter)[0]) if store else None
    run = start.new_run(name, settings, directory, store)
    named_groups(settings.model, run.vocab_size, settings.train)
    plan = plans.plan(run, text, until_step=options.max_steps, devices=devices, processes=processes)
    return PlannedRun(run=run, store=store, plan=plan)


def _store_if_prepared(settings: Settings, workspace: Workspace) -> TokenStore | None:
    """Open the store of a recipe; None if it is missing and the recipe declares the vocabulary size."""
    name, vocab_size = settings.corpus.store, settings.published.vocab_size
    try:
        return workspace.open_store(name)
    except StoreError as error:
        if workspace.store_path(name).exists() or vocab_size is None:
            raise
        workspace.reporter.say(f"{error}; counting with the benchmark's V = {vocab_size:,}")
        return None


def timed_share_of_peak(
    model: ModelSettings,
    vocab_size: int,
    train: TrainSettings,
    *,
    device: torch.device,
    peak: float,
    needed_bytes: int | None = None,
) -> float | None:
    """Time training steps of one process, and return the share of the peak rate (FLOP/s) that they reach.

    On a CPU, both are those of an idle machine: the time in which other processes run is not counted. None if the steps
    are too large to be timed within MAX_TIMED_S and MAX_TIMED_BYTES.
    """
    if train.compile == "on":  # compiling takes longer than a forecast may
        return None
    flops = step_flops_per_token(model, vocab_size, train)
    step_flops = train.batch_size * train.seg_len * flops
    n_steps = -(-train.mem_len // train.seg_len) + 1 + TIMED_STEPS  # to fill the memory, to warm up, to time
    expected_s = n_steps * step_flops / (CPU_SHARE * peak)
    if expected_s > MAX_TIMED_S:
        return None
    if (needed_bytes or step_bytes(model, vocab_size, train, device=device).total) > MAX_TIMED_BYTES:
        return None
    new = new_model(model, vocab_size, seed=train.seed, device=device)
    with deterministic_kernels(device, enabled=train.deterministic):
        step_ms = time_training(new, train, repeat=TIMED_STEPS, seconds=time.thread_time).low_high[0]
    return flops / (step_ms / 1e3) / peak


def scale(source: str, options: ScaleOptions, workspace: Workspace) -> ScaleForecast:
    """Return the cost of a recipe on each of 1 to MAX_DEVICES GPUs, in powers of two, as far as its batch divides.

    What only the GPUs themselves can reject is not checked.
    """
    planned = plan_run(source, TrainOptions(overrides=options.overrides), workspace, "", processes=1)
    plan, train = planned.plan, planned.run.settings.train
    most = min(MAX_DEVICES, train.batch_size // train.accumulate)
    counts = [2**power for power in range(1 if train.deterministic else most.bit_length())]
    return ScaleForecast(
        recipe=plan.recipe,
        parameters=plan.parameters,
        vocab_size=plan.vocab_size,
        precision=plan.precision,
        steps=plan.steps,
        batch_size=train.batch_size,
        accumulate=train.accumulate,
        device_memory_bytes=options.device_memory,
        bandwidth_bytes_per_s=options.bandwidth,
        device_flops_per_s=options.device_flops,
        training_flops_per_token=planned.flops_per_token,
        parallel=train.parallel,
        by_devices=tuple(_cost(planned, options, devices) for devices in counts),
    )


def exchanged_bytes(gradient_bytes: int, devices: int, *, parallel: str = "ddp") -> int:
    """Return the bytes that each of several GPUs sends, and receives, in a step, given the bytes of all gradients."""
    return PASSES[parallel] * (devices - 1) * gradient_bytes // devices


def device_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, devices: int) -> dict[str, int]:
    """Return the bytes of a step on the GPU with the largest part of the batch, by purpose, and their total."""
    if devices == 1:
        train = dataclasses.replace(train, parallel="ddp")
    of_one = of_one_process(train, devices)
    needed = step_bytes(model, vocab_size, of_one, device=GPU, processes=devices)
    logits = logit_bytes(model, vocab_size, of_one, device=GPU)
    by_purpose = needed.to_json() | {"activations": needed.activations - logits, "logits": logits}
    weights, total = (by_purpose.pop(purpose) for purpose in ("weights", "total"))
    return {"parameters": weights, **by_purpose, "total": total}


def _cost(planned: PlannedRun, options: ScaleOptions, devices: int) -> DeviceCost:
    run, train = planned.run, planned.run.settings.train
    needed = device_bytes(run.settings.model, run.vocab_size, train, devices)
    exchanged, of_one = (
        exchanged_bytes(FLOAT * run.parameters, devices, parallel=train.parallel),
        of_one_process(train, devices),
    )
    share, source = planned.expected_share(of_one, GPU)
    step_s = None
    if options.device_flops is not None:
        compute_s = of_one.batch_size * train.seg_len * planned.flops_per_token / (share * options.device_flops)
        step_s = compute_s + _visible_exchange_s(run, exchanged / (options.bandwidth or math.inf), compute_s)
    return DeviceCost(
        devices=devices,
        batch_size_per_device=of_one.batch_size,
        share_of_peak=share,
        share_source=source,
        device_bytes=needed,
        exchanged_bytes=exchanged,
        step_s=step_s,
        tokens_per_s=train.batch_size * train.seg_len / step_s if step_s else None,
        seconds=planned.plan.steps * step_s if step_s else None,
        fits=None if options.device_memory is None else needed["total"] <= USABLE * options.device_memory,
    )


def _visible_exchange_s(run: Run, exchange_s: float, compute_s: float) -> float:
    """Return the part of the time of an exchange that the computation of a step does not hide, in seconds.

    The exchange runs during the backward pass of the last micro-batch, except for the gradients of the embedding: that
    of a tied table is ready at the end of the backward pass only.
    """
    train = run.settings.train
    in_backward = ALL_REDUCE / PASSES[train.parallel] if train.parallel == "zero" else 1.0  # then come the weights
    late_share = parameters_by_part(run.settings.model, run.vocab_size)["embedding"] / run.parameters
    return exchange_s - min((1 - late_share) * in_backward * exchange_s, BACKWARD_SHARE * compute_s / train.accumulate)
