"""Forecasts the memory and the time of a training run without starting it."""

import dataclasses
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
from txlcli.core.measures.cost import counted_shares, step_flops_per_token
from txlcli.core.measures.forecast import StepBytes, parameters_by_part, snapshot_bytes, step_bytes
from txlcli.core.measures.gpus import CPU_SHARE, ExpectedShare, expected_share
from txlcli.core.measures.timing import peak_flops_per_s, time_training
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.loop import new_model
from txlcli.core.training.optimizer import named_groups
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError
from txlcli.runs.run_directory import Run
from txlcli.workflows.options import TrainOptions
from txlcli.workflows.training import initial_weights, start
from txlcli.workflows.training import plan as plans
from txlcli.workflows.workspace import Workspace

MAX_TIMED_S = 4.0
"""Longest time that the timing of training steps may be expected to take."""
MAX_TIMED_BYTES = 2**30
"""Most memory that a timed training step may need."""
TIMED_STEPS = 3


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
        return plans.flops_per_token(self.run, counted_shares(cut, self.store.ids("train")) if self.store else None)

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
