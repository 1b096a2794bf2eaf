"""Forecasts a training on other GPUs than those of this machine: memory of each, gradient exchange, and time."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from txlcli.config import recipe
from txlcli.config.bands import bands
from txlcli.config.settings import TrainSettings
from txlcli.core.measures.cost import counted_shares, training_flops_per_token
from txlcli.core.measures.device_memory import ALL_REDUCE, PASSES, DeviceMemory, exchanged_bytes, model_buckets
from txlcli.core.measures.footprint import parameters_by_part
from txlcli.core.training.data_parallel import of_one_process
from txlcli.core.training.optimizer import check_optimizer
from txlcli.data.token_store import TokenStore
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.workflows.out_of_memory import USABLE
from txlcli.workflows.training import plan as plans
from txlcli.workflows.training import start, text
from txlcli.workflows.training.execution import Limits
from txlcli.workflows.training.forecast import SHARE_OF_PEAK, store_if_prepared
from txlcli.workflows.training.out_of_memory import options, smaller_steps
from txlcli.workflows.workspace import Workspace

MAX_DEVICES = 512
"""Largest number of devices in the table of a recipe."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in the operations of a step."""


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One of several equal GPUs; None is unknown."""

    memory_bytes: float | None = None
    bandwidth: float | None = None
    """Bytes per second that a GPU sends to another one, while it receives as many."""
    flops_per_s: float | None = None
    """Peak rate of matrix products in the precision of the training."""


def forecast_devices(
    recipe_source: str,
    changes: list[str],
    workspace: Workspace,
    *,
    name: str | None,
    force: bool,
    max_steps: int | None,
    devices: int,
    hardware: Hardware,
) -> dict[str, Any]:
    """Return the plan of a training on several GPUs and its cost on each; no store and no run is made.

    Raises:
        StoreError: the store is missing and the recipe states no vocabulary size, or it is damaged.
        TxlError: see `start.train`; what only the GPUs themselves can refuse is not checked.
    """
    settings = start.load_settings(recipe_source, changes, Limits(max_steps=max_steps))
    directory = start.new_directory(recipe_source, name, workspace.runs_dir, force=force)
    store = store_if_prepared(settings, workspace)
    if store is not None:
        text.read_splits(settings, store, workspace.reporter)
    _check_several(settings.train, devices)
    run = start.new_run(recipe_source, settings, directory, store)
    check_optimizer(settings.model, run.vocab_size, settings.train)
    described = "1 GPU" if devices == 1 else f"{devices} GPUs"
    plan = plans.plan(run, until_step=max_steps, store=store, devices=described, processes=devices)
    scale = _Scale(run, store, hardware, steps=plan["steps"])
    return plan | {
        "parameters_by_part": parameters_by_part(settings.model, run.vocab_size),
        "published": recipe.to_keys(settings.published),
        **scale.common(),
        **scale.on(devices),
    }


def scale_recipe(source: str, changes: list[str], workspace: Workspace, *, hardware: Hardware) -> dict[str, Any]:
    """Return the cost of a recipe on each of 1 to MAX_DEVICES GPUs, in powers of two, as far as its batch divides.

    Raises:
        StoreError, RecipeError: see `forecast_devices`.
    """
    settings = start.load_settings(source, changes, Limits())
    store = store_if_prepared(settings, workspace)
    run = start.new_run(source, settings, workspace.runs_dir / "none", store)
    check_optimizer(settings.model, run.vocab_size, settings.train)
    train = settings.train
    scale = _Scale(run, store, hardware, steps=train.max_steps)
    most = min(MAX_DEVICES, train.batch_size // train.accumulate)
    counts = [2**power for power in range(most.bit_length() if _of_one_device(train) is None else 1)]
    return {
        "recipe": run.recipe_name,
        "parameters": run.parameters,
        "vocab_size": run.vocab_size,
        "batch_size": train.batch_size,
        "accumulate": train.accumulate,
        "precision": train.precision,
        "steps": train.max_steps,
        **scale.common(),
        "by_devices": [scale.on(count) for count in counts],
    }


def _check_several(train: TrainSettings, devices: int) -> None:
    if train.parallel != "ddp" and devices == 1:
        raise UsageError(f'train.parallel = "{train.parallel}" needs at least two GPUs; give --devices 2 or more')
    setting = _of_one_device(train)
    if devices > 1 and setting is not None:
        raise UsageError(f"train.{setting} needs a single GPU; --set train.{setting}=false, or --devices 1")


def _of_one_device(train: TrainSettings) -> str | None:
    """Return a setting that is on and needs a single device, if there is one."""
    return next((name for name in ("cuda_graph", "deterministic") if getattr(train, name)), None)


class _Scale:
    """The cost of one training on different numbers of GPUs."""

    def __init__(self, run: Run, store: TokenStore | None, hardware: Hardware, *, steps: int) -> None:
        self._settings, self._hardware, self._steps = run.settings, hardware, steps
        model, vocab_size, train = run.settings.model, run.vocab_size, run.settings.train
        self._memory = DeviceMemory(model, vocab_size)
        self._buckets = model_buckets(model, vocab_size)
        # The gradient of a tied table is ready at the end of the backward pass only.
        self._late_share = parameters_by_part(model, vocab_size)["embedding"] / run.parameters
        self._flops = training_flops_per_token(
            model,
            vocab_size,
            seg_len=train.seg_len,
            mem_len=train.mem_len,
            batch_size=train.batch_size,
            shares=counted_shares(bands(model, vocab_size), store.ids("train")) if store else None,
        )

    def common(self) -> dict[str, Any]:
        """Return what does not depend on the number of GPUs."""
        return {
            "device_memory_bytes": self._hardware.memory_bytes,
            "usable_share": USABLE,
            "bandwidth_bytes_per_s": self._hardware.bandwidth,
            "device_flops_per_s": self._hardware.flops_per_s,
            "share_of_peak": SHARE_OF_PEAK,
            "training_flops_per_token": self._flops,
            "parallel": self._settings.train.parallel,
            "buckets": len(self._buckets),
            "largest_bucket_bytes": max(self._buckets),
        }

    def on(self, devices: int) -> dict[str, Any]:
        """Return batch, memory, exchange and time on this many GPUs, and whether a step fits."""
        train = self._settings.train
        needed = self._memory(train, devices)
        exchanged = exchanged_bytes(sum(self._buckets), devices, parallel=train.parallel)
        step_s = self._step_s(train, devices, exchanged)
        tokens = train.batch_size * train.seg_len
        return {
            "devices": devices,
            "batch_size_per_device": of_one_process(train, devices).batch_size,
            "device_bytes": {**needed, "total": sum(needed.values())},
            "exchanged_bytes": exchanged,
            "step_s": step_s,
            "tokens_per_s": tokens / step_s if step_s else None,
            "seconds": self._steps * step_s if step_s else None,
            **self._fit(train, devices, sum(needed.values())),
        }

    def _step_s(self, train: TrainSettings, devices: int, exchanged: int) -> float | None:
        """Return the time of a step in seconds; None if the speed of the GPUs is unknown.

        The exchange runs during the backward pass of the last micro-batch, except for the gradients of the embedding.
        """
        hardware = self._hardware
        if hardware.flops_per_s is None:
            return None
        of_one = of_one_process(train, devices)
        compute_s = of_one.batch_size * train.seg_len * self._flops / (SHARE_OF_PEAK * hardware.flops_per_s)
        if hardware.bandwidth is None:
            return compute_s
        exchange_s = exchanged / hardware.bandwidth
        in_backward = ALL_REDUCE / PASSES[train.parallel] if train.parallel == "zero" else 1.0  # then come the weights
        hidden_s = min((1 - self._late_share) * in_backward * exchange_s, BACKWARD_SHARE * compute_s / train.accumulate)
        return compute_s + exchange_s - hidden_s

    def _fit(self, train: TrainSettings, devices: int, needed: int) -> dict[str, Any]:
        """Say whether a step fits, and if not, which division of the batch does."""
        if self._hardware.memory_bytes is None:
            return {"fits": None, "would_fit": None, "would_fit_bytes": None}
        usable = USABLE * self._hardware.memory_bytes
        if needed <= usable:
            return {"fits": True, "would_fit": None, "would_fit_bytes": None}
        fitting = next(self._fitting(train, devices, usable), None)
        change, less = fitting or (None, None)
        return {"fits": False, "would_fit": change, "would_fit_bytes": less}

    def _fitting(self, train: TrainSettings, devices: int, usable: float) -> Iterator[tuple[str, int]]:
        """Yield options that make a step fit, with its bytes; the least division of the batch first."""
        for smaller in smaller_steps(train, devices):
            less = sum(self._memory(smaller, devices).values())
            if less <= usable:
                yield options(train, smaller), less
