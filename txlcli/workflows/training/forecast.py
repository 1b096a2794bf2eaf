"""Forecasts memory and time of a training run on this machine, without starting it."""

import time
from dataclasses import dataclass
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.forecast import StepBytes, parameters_by_part, snapshot_bytes
from txlcli.core.measures.gpus import CPU_SHARE
from txlcli.core.measures.timing import Repetitions, peak_flops_per_s, time_training
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.optimizer import check_trainable
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError
from txlcli.system.processors import ShareClock
from txlcli.workflows.training import initial_weights, out_of_memory
from txlcli.workflows.training.build import check_device, new_run
from txlcli.workflows.training.plan import Plan
from txlcli.workflows.training.resolve import Request
from txlcli.workflows.training.text import read_splits
from txlcli.workflows.workspace import Workspace

MAX_TIMED_S = 4.0
"""Longest time that the timing of training steps may be expected to take."""
MAX_TIMED_BYTES = 2**30
"""Most memory that a timed training step may need."""
QUICK_S = 2.5
"""Longest time of a forecast that does not measure, on a CPU."""
MAX_QUICK_BYTES = 2**27
"""Most memory that a timed training step may need then."""
QUICK_SIZES = (512, 1024, 2048)
"""Sizes of the products by which such a forecast finds the peak rate."""
GROWTH = 8
"""Time of a product of one of these sizes in times of the size before."""
TIMED_STEPS = 3


@dataclass(frozen=True, kw_only=True)
class TrainingForecast:
    """Plan of a training run, and its cost on this machine."""

    plan: Plan
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
        own = vars(self) | {"step_bytes": self.step_bytes.to_json()}
        return self.plan.to_json() | {name: fact for name, fact in own.items() if name != "plan"}


def run(request: Request, workspace: Workspace, *, processes: int, measures: bool = False) -> TrainingForecast:
    """Return the plan of a training run and its cost; no run is made.

    On a CPU, its timing ends within QUICK_S even if the machine is busy, with smaller products and fewer steps, unless
    it `measures`.
    """
    device = pick_device(workspace.device)
    plan = planned(request, workspace, device, processes=processes)
    settings = plan.run.settings
    vocab_size = plan.run.vocab_size
    train = settings.train
    check_device(settings, device, processes=processes)
    out_of_memory.warn(plan, workspace.reporter)
    for note in plan.notes:
        workspace.reporter.say(note)
    needed = plan.step_bytes(train)
    rank_settings = of_one_process(train, processes)
    peak, timed_share = _measure(plan, rank_settings, needed, quick=device.type == "cpu" and not measures)
    if timed_share is None:
        expected = plan.expected_step(rank_settings)
        step_flops = plan.step_flops(rank_settings)
        share = step_flops / (expected.seconds(step_flops, peak) * peak)
        source = expected.source
    else:
        share = timed_share
        source = ""
    tails_by = "Zipf's law"
    if plan.store is not None:
        tails_by = "the store's text"
    devices = 1 if device.type == "cpu" else processes  # processes on a CPU share its cores
    tokens_per_s = devices * share * peak / plan.flops_per_token
    tokens = plan.steps * train.batch_size * train.seg_len
    return TrainingForecast(
        plan=plan,
        parameters_by_part=parameters_by_part(settings.model, vocab_size),
        step_bytes=needed,
        snapshot_bytes=snapshot_bytes(settings.model, vocab_size, train),
        training_flops_per_token=plan.flops_per_token,
        tails=len(settings.model.cutoffs),
        tails_by=tails_by,
        training_flops=tokens * plan.flops_per_token,
        peak_flops_per_s=peak,
        share_of_peak=share,
        share_source=source,
        step_was_timed=timed_share is not None,
        tokens_per_s=tokens_per_s,
        seconds=tokens / tokens_per_s,
        published=recipe.to_keys(settings.published),
    )


def planned(request: Request, workspace: Workspace, device: torch.device, *, processes: int = 1) -> Plan:
    """Check a training run as `build.built` does, except for its device, and plan it."""
    settings = request.settings
    directory = next(request.directories(workspace.runs_dir))
    store = _store_if_prepared(settings, workspace)
    if store is not None and request.begin_from is not None:
        initial_weights.read(request.begin_from, settings.model, store, workspace.reporter)
    run = new_run(request, directory, store)
    check_trainable(settings.model, run.vocab_size, settings.train)
    segments = None
    if store is not None:
        segments, _ = read_splits(settings, store, workspace.reporter)
    return Plan(
        run=run,
        store=store,
        segments=segments,
        until_step=request.options.max_steps,
        device=device,
        processes=processes,
    )


def _store_if_prepared(settings: Settings, workspace: Workspace) -> TokenStore | None:
    """Open the store of a recipe; None if it is missing and the recipe declares the vocabulary size."""
    name = settings.corpus.store
    vocab_size = settings.published.vocab_size
    try:
        return workspace.open_store(name)
    except StoreError as error:
        if workspace.store_path(name).exists() or vocab_size is None:
            raise
        workspace.reporter.say(f"{error}; counting with the published model's V = {vocab_size:,}")
        return None


def _measure(plan: Plan, train: TrainSettings, needed: StepBytes, *, quick: bool) -> tuple[float, float | None]:
    """Measure the peak rate (FLOP/s), and the share of it that the steps of one process reach, as far as they fit."""
    if quick:
        clock = ShareClock()
        peak = _quick_peak(plan.device, train.precision)
        limit_s = clock.share() * QUICK_S / 2
        max_bytes = MAX_QUICK_BYTES
    else:
        peak = peak_flops_per_s(plan.device, train.precision, seconds=time.thread_time)
        limit_s = MAX_TIMED_S
        max_bytes = MAX_TIMED_BYTES
    if needed.total > max_bytes:
        return peak, None
    return peak, _timed_share_of_peak(plan, train, peak, limit_s=limit_s)


def _quick_peak(device: torch.device, precision: str) -> float:
    """Measure the rate of products that grow as long as the next size ends within half of QUICK_S."""
    started = time.perf_counter()
    for size in QUICK_SIZES:
        before = time.perf_counter()
        peak = peak_flops_per_s(device, precision, 2, seconds=time.thread_time, size=size)
        took = time.perf_counter() - before
        if before - started + GROWTH * took > QUICK_S / 2:
            break
    return peak


def _timed_share_of_peak(plan: Plan, train: TrainSettings, peak: float, *, limit_s: float) -> float | None:
    """Time training steps of one process, and return the share of the peak rate (FLOP/s) that they reach.

    On a CPU, both are those of an idle machine: the time in which other processes run is not counted. None if the steps
    are too large to be timed within `limit_s` of processor time.
    """
    if train.compile == "on":  # compiling takes longer than a forecast may
        return None
    model_settings = plan.run.settings.model
    vocab_size = plan.run.vocab_size
    flops_per_token = step_flops_per_token(model_settings, vocab_size, train)
    to_fill_memory = -(-train.mem_len // train.seg_len)
    n_steps = to_fill_memory + 1 + TIMED_STEPS  # one to warm up
    if n_steps * train.batch_size * train.seg_len * flops_per_token > limit_s * CPU_SHARE * peak:
        return None
    model = new_model(model_settings, vocab_size, seed=train.seed, device=plan.device)
    with deterministic_kernels(plan.device, enabled=train.deterministic):
        timing = time_training(model, train, Repetitions(TIMED_STEPS), seconds=time.thread_time)
    ms_per_token, _ = timing.low_high
    return flops_per_token / (ms_per_token / 1e3) / peak
