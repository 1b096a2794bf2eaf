"""Forecasts the memory and the time of a training without starting it."""

import dataclasses
from pathlib import Path
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.bands import bands
from txlcli.config.settings import Settings
from txlcli.core.measures.cost import counted_shares, training_flops_per_token
from txlcli.core.measures.footprint import parameters_by_part, step_bytes
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.core.training.data_parallel import micro_batches
from txlcli.data.token_store import TokenStore
from txlcli.errors import StoreError
from txlcli.runs.loading import open_store
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import plan as plans
from txlcli.workflows.training import start, text
from txlcli.workflows.training.execution import Limits

SHARE_OF_PEAK = 0.5
"""Share of the rate of a large matrix product that a training is expected to reach; `txl speed` measures it."""


def forecast(
    recipe_source: str,
    changes: list[str],
    *,
    name: str | None,
    force: bool,
    device: str,
    data_dir: Path,
    runs_dir: Path,
    max_steps: int | None,
    processes: int,
    reporter: Reporter,
) -> dict[str, Any]:
    """Return the plan of a training and its cost; no store and no run is made.

    Raises:
        StoreError: the store is missing and the recipe states no vocabulary size, or it is damaged.
        TxlError: see `start.train`, which would refuse the same.
    """
    settings = start.load_settings(recipe_source, changes, Limits(max_steps=max_steps))
    folder = start.new_folder(recipe_source, name, runs_dir, force=force)
    store = _store_if_prepared(settings, data_dir, reporter)
    if store is not None:
        text.read_splits(settings, store, reporter)
    vocab_size = store.vocab.size if store else settings.published.vocab_size
    assert vocab_size is not None
    torch_device = plans.checked_device(settings, device, processes=processes)
    plan = plans.plan(
        recipe.read_text(recipe_source)[0],
        settings,
        folder,
        vocab_size=vocab_size,
        parameters=plans.count_parameters(settings, vocab_size, f"the store {store.path}" if store else "[published]"),
        until_step=max_steps,
        store=store,
        device=torch_device,
        processes=processes,
    )
    return plan | _cost(settings, vocab_size, store, torch_device, steps=plan["steps"], processes=processes)


def _store_if_prepared(settings: Settings, data_dir: Path, reporter: Reporter) -> TokenStore | None:
    try:
        return open_store(settings.corpus.store, data_dir)
    except StoreError as error:
        if (data_dir / f"{settings.corpus.store}.h5").exists() or settings.published.vocab_size is None:
            raise
        reporter.say(f"{error}; counting with the benchmark's V = {settings.published.vocab_size:,}")
        return None


def _cost(
    settings: Settings,
    vocab_size: int,
    store: TokenStore | None,
    device: "torch.device",
    *,
    steps: int,
    processes: int,
) -> dict[str, Any]:
    """Return parameters by part, bytes of a step of one process by purpose, operations, and the time of the steps."""
    train = settings.train
    largest = max(len(part) for part in micro_batches(train, processes))
    of_one_process = dataclasses.replace(train, batch_size=largest * train.accumulate)
    needed = step_bytes(settings.model, vocab_size, of_one_process, device=device)
    shares = counted_shares(bands(settings.model, vocab_size), store.ids("train")) if store else None
    flops = training_flops_per_token(
        settings.model,
        vocab_size,
        seg_len=train.seg_len,
        mem_len=train.mem_len,
        batch_size=train.batch_size,
        shares=shares,
    )
    peak = peak_flops_per_s(device, train.precision)
    devices = 1 if device.type == "cpu" else processes  # processes on a CPU share its cores
    rate = devices * SHARE_OF_PEAK * peak / flops
    tokens = steps * train.batch_size * train.seg_len
    return {
        "parameters_by_part": parameters_by_part(settings.model, vocab_size),
        "step_bytes": {**needed, "total": sum(needed.values())},
        "training_flops_per_token": flops,
        "tails": len(settings.model.cutoffs),
        "tails_by": "the store's text" if store else "Zipf's law",
        "training_flops": tokens * flops,
        "peak_flops_per_s": peak,
        "share_of_peak": SHARE_OF_PEAK,
        "tokens_per_s": rate,
        "seconds": tokens / rate,
        "published": recipe.to_keys(settings.published),
    }
