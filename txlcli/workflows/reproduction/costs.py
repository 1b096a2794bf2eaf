"""Forecasts the cost of the training runs that a table or figure needs."""

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli.config.settings import Settings
from txlcli.core.kernels.device import pick_device
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.gpus import CPU_SHARE
from txlcli.core.measures.timing import peak_flops_per_s
from txlcli.runs import history, run_directory
from txlcli.workflows.options import ReproduceOptions
from txlcli.workflows.reproduction.reproduce import ITEMS, scale_of
from txlcli.workflows.reproduction.runner import seeds_of
from txlcli.workflows.reproduction.scales import Scale
from txlcli.workflows.training.forecast import timed_share_of_peak
from txlcli.workflows.workspace import Workspace

BYTES = 256
MAX_S = 10.0
"""Seconds after which no further model is timed."""


@dataclass(frozen=True, kw_only=True)
class ItemCost:
    """Cost of the training runs of a table or figure that are missing."""

    item: str
    models: int
    """Number of all its training runs."""
    missing: int
    training_flops: float
    seconds: float


@dataclass(frozen=True, kw_only=True)
class CostsResult:
    """Cost of the training runs of several tables or figures that are missing, on this machine."""

    scale: Scale
    peak_flops_per_s: float
    items: tuple[ItemCost, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl reproduce --list --json` prints."""
        return {**vars(self), "scale": self.scale.name, "items": [vars(item) for item in self.items]}


def run(names: Sequence[str], options: ReproduceOptions, workspace: Workspace, max_s: float = MAX_S) -> CostsResult:
    """Forecast the cost of items.

    Small models are timed, once per shape, until `max_s` seconds have passed. The others have the median rate.
    """
    scale, device = scale_of(options, workspace), pick_device(workspace.device)
    peak = peak_flops_per_s(device, "fp32", seconds=time.thread_time)
    shares: dict[tuple[object, ...], float] = {}
    timed_until = time.monotonic() + max_s

    def flops_and_seconds(settings: Settings) -> tuple[float, float]:
        """Return the operations and the time of a training run."""
        model, train, vocab_size = settings.model, settings.train, _vocab_size(settings, scale, workspace)
        flops = train.max_steps * train.batch_size * train.seg_len * step_flops_per_token(model, vocab_size, train)
        shape = (model, vocab_size, train.batch_size, train.seg_len, train.mem_len)
        if shape not in shares and time.monotonic() < timed_until:
            shares[shape] = timed_share_of_peak(model, vocab_size, train, device=device, peak=peak) or CPU_SHARE
        share = shares.get(shape) or statistics.median(shares.values() or [CPU_SHARE])
        return flops, flops / (share * peak)

    items = []
    for name in names:
        runs = [(part, seed) for part in ITEMS[name][0] for seed in seeds_of(options)]
        missing = [part for part, seed in runs if not _is_finished(workspace.runs_dir / scale.run_name(part, seed))]
        costs = [flops_and_seconds(scale.models[part].settings()) for part in missing]
        flops, seconds = (sum(column) for column in zip((0.0, 0.0), *costs, strict=True))
        items.append(ItemCost(item=name, models=len(runs), missing=len(missing), training_flops=flops, seconds=seconds))
    return CostsResult(scale=scale, peak_flops_per_s=peak, items=tuple(items))


def _is_finished(directory: Path) -> bool:
    is_run = run_directory.is_run(directory.name, directory.parent)
    return is_run and history.read(run_directory.open_run(directory)).state == "finished"


def _vocab_size(settings: Settings, scale: Scale, workspace: Workspace) -> int:
    """Return the V of the benchmark, otherwise of the store, or without one of the options of `txl prepare`."""
    store = settings.corpus.store
    if settings.published.vocab_size is not None:
        return settings.published.vocab_size
    if workspace.store_path(store).is_file():
        return workspace.open_store(store).vocab.size
    return int(scale.texts[store].get("vocab_size", BYTES))
