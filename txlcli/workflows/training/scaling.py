"""Forecasts a training run on other GPUs than those of this machine: memory of each, gradient exchange, and time."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import Settings, TrainSettings
from txlcli.core.measures.forecast import FLOAT, logit_bytes, parameter_shapes, parameters_by_part, step_bytes
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.optimizer import check_optimizer
from txlcli.errors import UsageError
from txlcli.workflows.options import HardwareOptions, TrainOptions
from txlcli.workflows.out_of_memory import USABLE
from txlcli.workflows.training import start
from txlcli.workflows.training.forecast import SHARE_OF_PEAK, PlannedRun, plan_run, store_if_prepared
from txlcli.workflows.training.out_of_memory import options, smaller_steps
from txlcli.workflows.training.plan import plan
from txlcli.workflows.workspace import Workspace

GPU = torch.device("cuda")
MAX_DEVICES = 512
"""Largest number of devices in the table of a recipe."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in the operations of a step."""
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""DistributedDataParallel's defaults: a bucket is full once it has this many bytes."""
ALL_REDUCE = 2
"""Times that an all-reduce sends nearly all gradients around the ring."""
PASSES = {"ddp": ALL_REDUCE, "zero": ALL_REDUCE + 1, "fsdp": 3}
"""Times that a step sends nearly all weights or gradients around the ring, counted in fp32: zero sends the updated
weights, too; fsdp sends the weights twice, and the gradients once."""


@dataclass(frozen=True, kw_only=True)
class DeviceCost:
    """Cost of a training run on a number of GPUs."""

    devices: int
    batch_size_per_device: int
    device_bytes: dict[str, int]
    """Bytes of a step on the GPU with the largest part of the batch, by purpose, and their total."""
    exchanged_bytes: int
    """Bytes that each GPU sends, and receives, in a step."""
    step_s: float | None
    tokens_per_s: float | None
    seconds: float | None
    fits: bool | None
    would_fit: str | None = None
    """Options of a division of the batch that fits."""
    would_fit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DevicesForecast:
    """Facts that do not depend on the number of GPUs, and the cost on each number."""

    device_memory_bytes: float | None
    usable_share: float
    bandwidth_bytes_per_s: float | None
    device_flops_per_s: float | None
    share_of_peak: float
    training_flops_per_token: float
    parallel: str
    buckets: int
    largest_bucket_bytes: int
    title: str
    """The training run, or the recipe, in words."""
    steps: int
    """Steps whose time is forecast."""
    subject: dict[str, object]
    """The beginning of the object in JSON: the plan of the training run, or sizes of the recipe."""
    by_devices: tuple[DeviceCost, ...]
    is_plan: bool
    """True for a training run on a single number of GPUs."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl recipes scale --json`, or `txl train --dry-run --devices N --json`, prints."""
        own = dataclasses.asdict(self)
        del own["title"], own["steps"], own["is_plan"]
        whole = own.pop("subject") | own
        return whole | whole.pop("by_devices")[0] if self.is_plan else whole


def forecast_devices(
    recipe_source: str, options: TrainOptions, workspace: Workspace, *, devices: int, hardware: HardwareOptions
) -> DevicesForecast:
    """Return the plan of a training run on several GPUs and its cost on each; no store and no run is made.

    What only the GPUs themselves can reject is not checked.
    """

    def describe(settings: Settings) -> str:
        _check_several(settings.train, devices)
        return "1 GPU" if devices == 1 else f"{devices} GPUs"

    planned = plan_run(recipe_source, options, workspace, describe, processes=devices)
    settings = planned.run.settings
    subject = dataclasses.asdict(planned.plan) | {
        "parameters_by_part": parameters_by_part(settings.model, planned.run.vocab_size),
        "published": recipe.to_keys(settings.published),
    }
    return _Scale(planned, hardware).forecast(str(planned.plan), subject, [devices], is_plan=True)


def scale_recipe(
    source: str, options: TrainOptions, workspace: Workspace, *, hardware: HardwareOptions
) -> DevicesForecast:
    """Return the cost of a recipe on each of 1 to MAX_DEVICES GPUs, in powers of two, as far as its batch divides."""
    settings = start.load_settings(source, options)
    store = store_if_prepared(settings, workspace)
    run = start.new_run(source, settings, workspace.runs_dir / "none", store)
    check_optimizer(settings.model, run.vocab_size, settings.train)
    train = settings.train
    most = min(MAX_DEVICES, train.batch_size // train.accumulate)
    counts = [2**power for power in range(most.bit_length() if _of_one_device(train) is None else 1)]
    subject = {
        "recipe": run.recipe_name,
        "parameters": run.parameters,
        "vocab_size": run.vocab_size,
        "batch_size": train.batch_size,
        "accumulate": train.accumulate,
        "precision": train.precision,
        "steps": train.max_steps,
    }
    title = (
        f"{run.recipe_name}: {run.parameters:,} parameters, batches of {train.batch_size}, {train.max_steps:,} steps, "
        f"{train.precision}; memory of each GPU"
    )
    planned = PlannedRun(run=run, store=store, plan=plan(run, until_step=None, store=store, devices="", processes=1))
    return _Scale(planned, hardware).forecast(title, subject, counts)


def _check_several(train: TrainSettings, devices: int) -> None:
    if train.parallel != "ddp" and devices == 1:
        raise UsageError(f'train.parallel = "{train.parallel}" needs at least two GPUs; give `devices` 2 or more')
    setting = _of_one_device(train)
    if devices > 1 and setting is not None:
        raise UsageError(f"train.{setting} needs a single GPU; `overrides` train.{setting}=false, or `devices` 1")


def _of_one_device(train: TrainSettings) -> str | None:
    """Return a setting that is on and needs a single device, if there is one."""
    return next((name for name in ("cuda_graph", "deterministic") if getattr(train, name)), None)


def gradient_buckets(sizes: Iterable[int]) -> list[int]:
    """Return the bytes of the buckets that gradients of these bytes fill, in the order in which they are ready."""
    buckets: list[int] = []
    filled = 0
    for size in sizes:
        filled += size
        if filled >= (BUCKET_BYTES if buckets else FIRST_BUCKET_BYTES):
            buckets.append(filled)
            filled = 0
    return [*buckets, filled] if filled else buckets


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
    weights, total, _ = (by_purpose.pop(purpose) for purpose in ("weights", "total", "workspace"))
    return {"parameters": weights, **by_purpose, "total": total}


class _Scale:
    """Cost of a training run on different numbers of GPUs."""

    def __init__(self, planned: PlannedRun, hardware: HardwareOptions) -> None:
        run = planned.run
        self._hardware, self._steps, self._train = hardware, planned.plan.steps, run.settings.train
        self._model, self._vocab_size, self._flops = run.settings.model, run.vocab_size, planned.flops_per_token
        shapes = reversed(parameter_shapes(self._model, self._vocab_size).values())  # the last ones are first
        self._buckets = gradient_buckets(FLOAT * shape.numel() for shape in shapes)
        # The gradient of a tied table is ready at the end of the backward pass only.
        self._late_share = parameters_by_part(self._model, self._vocab_size)["embedding"] / run.parameters

    def forecast(
        self, title: str, subject: dict[str, object], counts: Iterable[int], *, is_plan: bool = False
    ) -> DevicesForecast:
        """Return the cost on each of these numbers of GPUs."""
        return DevicesForecast(
            device_memory_bytes=self._hardware.device_memory,
            usable_share=USABLE,
            bandwidth_bytes_per_s=self._hardware.bandwidth,
            device_flops_per_s=self._hardware.device_flops,
            share_of_peak=SHARE_OF_PEAK,
            training_flops_per_token=self._flops,
            parallel=self._train.parallel,
            buckets=len(self._buckets),
            largest_bucket_bytes=max(self._buckets),
            title=title,
            steps=self._steps,
            subject=subject,
            by_devices=tuple(map(self._on, counts)),
            is_plan=is_plan,
        )

    def _on(self, devices: int) -> DeviceCost:
        needed = device_bytes(self._model, self._vocab_size, self._train, devices)
        exchanged = exchanged_bytes(sum(self._buckets), devices, parallel=self._train.parallel)
        step_s, usable = self._step_s(devices, exchanged), USABLE * (self._hardware.device_memory or 0)
        is_known, fits = self._hardware.device_memory is not None, needed["total"] <= usable
        would_fit, would_fit_bytes = self._fitting(devices, usable) if is_known and not fits else (None, None)
        return DeviceCost(
            devices=devices,
            batch_size_per_device=of_one_process(self._train, devices).batch_size,
            device_bytes=needed,
            exchanged_bytes=exchanged,
            step_s=step_s,
            tokens_per_s=self._train.batch_size * self._train.seg_len / step_s if step_s else None,
            seconds=self._steps * step_s if step_s else None,
            fits=fits if is_known else None,
            would_fit=would_fit,
            would_fit_bytes=would_fit_bytes,
        )

    def _step_s(self, devices: int, exchanged: int) -> float | None:
        """Return the time of a step in seconds; None if the speed of the GPUs is unknown.

        The exchange runs during the backward pass of the last micro-batch, except for the gradients of the embedding.
        """
        hardware, train = self._hardware, self._train
        if hardware.device_flops is None:
            return None
        of_one = of_one_process(train, devices)
        compute_s = of_one.batch_size * train.seg_len * self._flops / (SHARE_OF_PEAK * hardware.device_flops)
        if hardware.bandwidth is None:
            return compute_s
        exchange_s = exchanged / hardware.bandwidth
        in_backward = ALL_REDUCE / PASSES[train.parallel] if train.parallel == "zero" else 1.0  # then come the weights
        hidden_s = min((1 - self._late_share) * in_backward * exchange_s, BACKWARD_SHARE * compute_s / train.accumulate)
        return compute_s + exchange_s - hidden_s

    def _fitting(self, devices: int, usable: float) -> tuple[str | None, int | None]:
        """Return the options of the least division of the batch that fits, and its bytes; None if none does."""
        for smaller in smaller_steps(self._train, devices):
            less = device_bytes(self._model, self._vocab_size, smaller, devices)["total"]
            if less <= usable:
                return options(self._train, smaller), less
        return None, None
