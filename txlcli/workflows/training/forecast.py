"""Forecasts the memory and the time of a training without starting it."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import AttentionBackend, Settings, TrainSettings
from txlcli.core.kernels.compilation import check_attention
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.measures.cost import (
    Shares,
    attention_flops_per_token,
    counted_shares,
    needed_attention_flops_per_token,
    softmax_flops_per_token,
    training_flops_per_token,
)
from txlcli.core.measures.footprint import computed_scores, parameters_by_part, snapshot_bytes, step_bytes
from txlcli.core.measures.timing import idle_clock_of, peak_flops_per_s, time_training
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.data_parallel import of_one_process
from txlcli.core.training.loop import new_model
from txlcli.core.training.optimizer import check_optimizer
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError, UsageError
from txlcli.runs.run_directory import Run
from txlcli.workflows.training import plan as plans
from txlcli.workflows.training import start, text
from txlcli.workflows.training.execution import Limits
from txlcli.workflows.workspace import Workspace

SHARE_OF_PEAK = 0.5
"""Share of the rate of a large matrix product that a training step is expected to reach if it is too large to time."""
MAX_TIMED_S = 4.0
"""Longest time that the timing of training steps may be expected to take."""
MAX_TIMED_BYTES = 2**30
"""Most memory that a timed training step may need."""
TIMED_STEPS = 3


def forecast(
    recipe_source: str,
    changes: list[str],
    workspace: Workspace,
    *,
    name: str | None,
    force: bool,
    max_steps: int | None,
    processes: int,
    backends: bool = False,
) -> dict[str, Any]:
    """Return the plan of a training and its cost; no store and no run is made.

    Args:
        recipe_source: name or path of a recipe.
        changes: overrides of settings, as --set takes them.
        workspace: directories, device, reporter.
        name: of the run; None for the name of the recipe.
        force: replace an earlier run of that name.
        max_steps: last step to take; None for all.
        processes: number of processes that share a batch.
        backends: count memory and operations with each attention backend, too, which takes seconds.

    Raises:
        StoreError: the store is missing and the recipe states no vocabulary size, or it is damaged.
        TxlError: see `start.train`, which would refuse the same.
    """
    settings = start.load_settings(recipe_source, changes, Limits(max_steps=max_steps))
    directory = start.new_directory(recipe_source, name, workspace.runs_dir, force=force)
    store = store_if_prepared(settings, workspace)
    if store is not None:
        text.read_splits(settings, store, workspace.reporter)
    device = plans.checked_device(settings, workspace.device, processes=processes)
    run = start.new_run(recipe_source, settings, directory, store)
    check_optimizer(settings.model, run.vocab_size, settings.train)
    described = plans.describe_devices(device, processes)
    plan = plans.plan(run, until_step=max_steps, store=store, devices=described, processes=processes)
    return plan | _cost(run, store, device, steps=plan["steps"], processes=processes, backends=backends)


def store_if_prepared(settings: Settings, workspace: Workspace) -> TokenStore | None:
    """Open the store of a recipe; None if it is missing and the recipe states the vocabulary size of its benchmark.

    Raises:
        StoreError: it is missing and there is no such size, or it is damaged.
    """
    name, vocab_size = settings.corpus.store, settings.published.vocab_size
    try:
        return workspace.open_store(name)
    except StoreError as error:
        if workspace.store_path(name).exists() or vocab_size is None:
            raise
        workspace.reporter.say(f"{error}; counting with the benchmark's V = {vocab_size:,}")
        return None


def _cost(
    run: Run, store: TokenStore | None, device: torch.device, *, steps: int, processes: int, backends: bool
) -> dict[str, Any]:
    """Return parameters by part, bytes of a step of one process by purpose, operations, and the time of the steps."""
    settings, vocab_size = run.settings, run.vocab_size
    train = settings.train
    train_of_one = of_one_process(train, processes)
    needed = step_bytes(settings.model, vocab_size, train_of_one, device=device, processes=processes)
    shares = counted_shares(bands(settings.model, vocab_size), store.ids("train")) if store else None
    flops = training_flops_per_token(
        settings.model,
        vocab_size,
        seg_len=train.seg_len,
        mem_len=train.mem_len,
        batch_size=train.batch_size,
        shares=shares,
    )
    peak = peak_flops_per_s(device, train.precision, new_clock=idle_clock_of)
    total = sum(needed.values())
    share = timed_share_of_peak(settings.model, vocab_size, train_of_one, device=device, peak=peak, needed_bytes=total)
    devices = 1 if device.type == "cpu" else processes  # processes on a CPU share its cores
    rate = devices * (share or SHARE_OF_PEAK) * peak / flops
    tokens = steps * train.batch_size * train.seg_len
    return {
        "parameters_by_part": parameters_by_part(settings.model, vocab_size),
        "step_bytes": {**needed, "total": total},
        "snapshot_bytes": snapshot_bytes(settings.model, vocab_size, train, needed, processes),
        "training_flops_per_token": flops,
        "tails": len(settings.model.cutoffs),
        "tails_by": "the store's text" if store else "Zipf's law",
        "training_flops": tokens * flops,
        "peak_flops_per_s": peak,
        "share_of_peak": share or SHARE_OF_PEAK,
        "step_was_timed": share is not None,
        "tokens_per_s": rate,
        "seconds": tokens / rate,
        "published": recipe.to_keys(settings.published),
        "by_attention": list(
            _by_attention(
                settings,
                vocab_size,
                train_of_one,
                device,
                processes=processes,
                flops=flops,
                total=total,
                shares=shares,
            )
        )
        if backends
        else [],
    }


BACKENDS: tuple[tuple[AttentionBackend, bool], ...] = (
    ("auto", False),
    ("auto", True),
    ("sdpa", False),
    ("flex", False),
    ("triton", False),
)
"""Attention backends that are compared, each with or without recomputation."""


def _by_attention(
    settings: Settings,
    vocab_size: int,
    train: TrainSettings,
    device: torch.device,
    *,
    processes: int,
    flops: float,
    total: int,
    shares: Shares | None,
) -> Iterator[dict[str, Any]]:
    """Yield the memory and the operations of a step of one process with each attention backend.

    Backends that need CUDA are counted for it, on any device.

    Args:
        settings: of the training.
        vocab_size: V.
        train: batch size, lengths and precision of one process.
        device: to train on.
        processes: that share the batch.
        flops: operations per token that the model needs.
        total: bytes of a step with the settings as they are.
        shares: of the tokens in each band of the vocabulary; by Zipf's law by default.
    """
    model = settings.model
    if not isinstance(model, TransformerSettings) or model.recurrent_state:
        return  # formulas of the backends know keys of a memory, but no memory tokens
    lengths = {"seg_len": train.seg_len, "mem_len": train.mem_len}
    others = flops - needed_attention_flops_per_token(model, **lengths)
    logits = softmax_flops_per_token(model, vocab_size, shares)
    counted = {_counted_alike(train.attention, device, recompute=train.recompute): total}
    for backend, recompute in BACKENDS:
        at = torch.device("cuda") if backend in ("flex", "triton") else device
        changed = dataclasses.replace(
            train, attention=backend, recompute=recompute, cuda_graph=False, deterministic=False
        )
        key = _counted_alike(backend, at, recompute=recompute)
        if key not in counted:
            counted[key] = sum(step_bytes(model, vocab_size, changed, device=at, processes=processes).values())
        of_attention = _attention_flops(model, changed, at)
        yield {
            "attention": backend,
            "recompute": recompute,
            "device": at.type,
            "step_bytes": counted[key],
            "flops_per_token": others + of_attention + recompute * logits,
            "refused": _reason_against(settings, backend, device, recompute=recompute),
        }


def _attention_flops(model: TransformerSettings, train: TrainSettings, device: torch.device) -> float:
    """Return the operations between queries and keys per predicted token of a step."""
    lengths = {"seg_len": train.seg_len, "mem_len": train.mem_len}
    return attention_flops_per_token(
        model,
        train.attention,
        **lengths,
        scores=computed_scores(model, train, device, **lengths),
        position_scores=computed_scores(model, train, device, **lengths, most=model.window),
        recompute=train.recompute,
    )


def _counted_alike(backend: str, device: torch.device, *, recompute: bool) -> tuple[str, str, bool]:
    """Return a key that is equal for backends whose steps keep equally many bytes."""
    on_cuda = device.type == "cuda" or backend in ("flex", "triton")
    fused = on_cuda and backend in ("sdpa", "flex", "triton")
    return "cuda" if on_cuda else "cpu", "fused" if fused else backend, recompute


def _reason_against(
    settings: Settings, backend: AttentionBackend, device: torch.device, *, recompute: bool
) -> str | None:
    """Return the error that a training with an attention backend would end with; None if it would train."""
    try:
        train = dataclasses.replace(settings.train, attention=backend, recompute=recompute)
        dataclasses.replace(settings, train=train)
        check_attention(backend, device, d_head=settings.model.head_width)
    except UsageError as error:
        return str(error)
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
    """Time training steps of a model, and return the share that they reach of the rate of a large matrix product.

    On a CPU, both are those of an idle machine: the time in which other processes run is not counted. If they run,
    threads spin while they wait for each other, and one thread alone may be faster; the larger rate counts.

    Args:
        model: sizes of the model.
        vocab_size: V.
        train: batch size, lengths, precision and optimizer of one process.
        device: where to time.
        peak: operations per second of the matrix product.
        needed_bytes: memory of a step, if it is known; counted otherwise.

    Returns:
        None if the steps are too large to be timed within MAX_TIMED_S and MAX_TIMED_BYTES.
    """
    if train.cuda_graph or train.compile:  # preparing these takes longer than a forecast may
        return None
    flops = training_flops_per_token(
        model, vocab_size, seg_len=train.seg_len, mem_len=train.mem_len, batch_size=train.batch_size
    )
    step_flops = train.batch_size * train.seg_len * flops
    n_steps = -(-train.mem_len // train.seg_len) + 1 + TIMED_STEPS  # to fill the memory, to warm up, to time
    expected_s = n_steps * step_flops / (SHARE_OF_PEAK * peak)
    if expected_s > MAX_TIMED_S:
        return None
    if needed_bytes is None:
        needed_bytes = sum(step_bytes(model, vocab_size, train, device=device).values())
    if needed_bytes > MAX_TIMED_BYTES:
        return None
    new = new_model(model, vocab_size, seed=train.seed, device=device)
    threads = torch.get_num_threads()
    with deterministic_kernels(device, enabled=train.deterministic):
        times = [time_training(new, train, repeat=TIMED_STEPS, new_clock=idle_clock_of).low]
        if device.type == "cpu" and threads > 1 and threads * expected_s <= MAX_TIMED_S:
            times.append(_time_with_one_thread(new, train))
    return flops / (min(times) / 1e3) / peak


def _time_with_one_thread(model: LanguageModel, train: TrainSettings) -> float:
    """Return the time of training steps per token with one thread, in ms."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return time_training(model, train, repeat=TIMED_STEPS, new_clock=idle_clock_of).low
    finally:
        torch.set_num_threads(threads)
