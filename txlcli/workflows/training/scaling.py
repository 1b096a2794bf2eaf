"""Forecasts a training run on other GPUs than those of this machine: memory of each, gradient exchange, and time."""

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from txlcli.config import recipe
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.measures.forecast import FLOAT, logit_bytes, parameter_shapes, parameters_by_part, step_bytes
from txlcli.core.training.distributed import of_one_process
from txlcli.errors import UsageError
from txlcli.workflows.options import HardwareOptions, TrainOptions
from txlcli.workflows.training.forecast import PlannedRun, plan_run
from txlcli.workflows.training.out_of_memory import USABLE, fitting
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
    would_fit: str | None = None
    """Options of a division of the batch that fits."""
    would_fit_bytes: int | None = None


@dataclass(frozen=True, kw_only=True)
class DevicesForecast:
    """Facts that do not depend on the number of GPUs, and the cost on each number."""

    device_memory_bytes: float | None
    usable_share: float = USABLE
    bandwidth_bytes_per_s: float | None
    device_flops_per_s: float | None
    training_flops_per_token: float
    parallel: str
    buckets: int
    largest_bucket_bytes: int
    by_devices: tuple[DeviceCost, ...]
    subject: dict[str, Any]
    """The beginning of the object in JSON: the plan of the training run, or sizes of the recipe."""
    title: str
    """The training run, or the recipe, in words."""
    is_plan: bool
    """True for a training run on a single number of GPUs."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl recipes scale --json`, or `txl train --dry-run --devices N --json`, prints."""
        own = dataclasses.asdict(self)
        del own["title"], own["is_plan"]
        whole = own.pop("subject") | own
        return whole | whole.pop("by_devices")[0] if self.is_plan else whole


def forecast_devices(
    recipe_source: str | None, options: TrainOptions, workspace: Workspace, *, devices: int, hardware: HardwareOptions
) -> DevicesForecast:
    """Return the plan of a training run on several GPUs and its cost on each; no store and no run is made.

    What only the GPUs themselves can reject is not checked.
    """
    described = "1 GPU" if devices == 1 else f"{devices} GPUs"
    planned = plan_run(recipe_source, options, workspace, described, processes=devices)
    settings = planned.run.settings
    _check_several(settings.train, devices)
    subject = dataclasses.asdict(planned.plan) | {
        "parameters_by_part": parameters_by_part(settings.model, planned.run.vocab_size),
        "published": recipe.to_keys(settings.published),
    }
    return _forecast(planned, hardware, [devices], title=str(planned.plan), subject=subject, is_plan=True)


def scale_recipe(
    source: str, options: TrainOptions, workspace: Workspace, *, hardware: HardwareOptions
) -> DevicesForecast:
    """Return the cost of a recipe on each of 1 to MAX_DEVICES GPUs, in powers of two, as far as its batch divides."""
    planned = plan_run(source, options, workspace, "", processes=1)
    plan, train = planned.plan, planned.run.settings.train
    most = min(MAX_DEVICES, train.batch_size // train.accumulate)
    counts = [2**power for power in range(1 if train.deterministic else most.bit_length())]
    names = ("recipe", "parameters", "vocab_size", "precision", "steps")
    subject = {name: getattr(plan, name) for name in names}
    subject |= {"batch_size": train.batch_size, "accumulate": train.accumulate}
    title = (
        f"{plan.recipe}: {plan.parameters:,} parameters, batches of {train.batch_size}, {plan.steps:,} steps, "
        f"{train.precision}; memory of each GPU"
    )
    return _forecast(planned, hardware, counts, title=title, subject=subject)


def _check_several(train: TrainSettings, devices: int) -> None:
    if train.parallel != "ddp" and devices == 1:
        raise UsageError(f'train.parallel = "{train.parallel}" needs at least two GPUs; give `devices` 2 or more')
    if devices > 1 and train.deterministic:
        raise UsageError(
            "train.deterministic needs a single GPU; `overrides` train.deterministic=false, or `devices` 1"
        )


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


def _forecast(
    planned: PlannedRun,
    hardware: HardwareOptions,
    counts: Iterable[int],
    *,
    title: str,
    subject: dict[str, Any],
    is_plan: bool = False,
) -> DevicesForecast:
    """Return the cost on each of these numbers of GPUs."""
    run = planned.run
    shapes = parameter_shapes(run.settings.model, run.vocab_size)
    buckets = gradient_buckets(FLOAT * shape.numel() for shape in reversed(shapes.values()))  # the last ones are first
    return DevicesForecast(
        device_memory_bytes=hardware.device_memory,
        bandwidth_bytes_per_s=hardware.bandwidth,
        device_flops_per_s=hardware.device_flops,
        training_flops_per_token=planned.flops_per_token,
        parallel=run.settings.train.parallel,
        buckets=len(buckets),
        largest_bucket_bytes=max(buckets),
        by_devices=tuple(_cost(planned, hardware, devices, sum(buckets)) for devices in counts),
        subject=subject,
        title=title,
        is_plan=is_plan,
    )


def _cost(planned: PlannedRun, hardware: HardwareOptions, devices: int, gradient_bytes: int) -> DeviceCost:
    """Return the cost on a number of GPUs; `fits` is None without their memory, times are None without their speed."""
    model, vocab_size, train = planned.run.settings.model, planned.run.vocab_size, planned.run.settings.train
    needed = device_bytes(model, vocab_size, train, devices)
    exchanged = exchanged_bytes(gradient_bytes, devices, parallel=train.parallel)
    of_one = of_one_process(train, devices)
    share, source = planned.expected_share(of_one, GPU)
    step_s = _step_s(planned, hardware, of_one.batch_size, exchanged, share=share)
    usable = USABLE * (hardware.device_memory or 0)
    fits = None if hardware.device_memory is None else needed["total"] <= usable

    def forecast(smaller: TrainSettings) -> int:
        return device_bytes(model, vocab_size, smaller, devices)["total"]

    smaller = fitting(train, devices, usable, forecast, count=1) if fits is False else []
    would_fit, would_fit_bytes = smaller[0] if smaller else (None, None)
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
        fits=fits,
        would_fit=would_fit,
        would_fit_bytes=would_fit_bytes,
    )


def _step_s(
    planned: PlannedRun, hardware: HardwareOptions, batch_size: int, exchanged: int, *, share: float
) -> float | None:
    """Return the time of a step in seconds, of a GPU with part of the batch; None if the speed of GPUs is unknown.

    The exchange runs during the backward pass of the last micro-batch, except for the gradients of the embedding: that
    of a tied table is ready at the end of the backward pass only.
    """
    run, train = planned.run, planned.run.settings.train
    if hardware.device_flops is None:
        return None
    compute_s = batch_size * train.seg_len * planned.flops_per_token / (share * hardware.device_flops)
    if hardware.bandwidth is None:
        return compute_s
    exchange_s = exchanged / hardware.bandwidth
    in_backward = ALL_REDUCE / PASSES[train.parallel] if train.parallel == "zero" else 1.0  # then come the weights
    late_share = parameters_by_part(run.settings.model, run.vocab_size)["embedding"] / run.parameters
    hidden_s = min((1 - late_share) * in_backward * exchange_s, BACKWARD_SHARE * compute_s / train.accumulate)
    return compute_s + exchange_s - hidden_s
