"""Forecasts memory and time of a training run on 1 to 512 GPUs, which this machine need not have."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from txlcli.config.train_settings import TrainSettings
from txlcli.core.measures.forecast import parameters_by_part, step_bytes
from txlcli.core.measures.gpus import product_flops_per_s
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.parallel import FLOAT_BYTES
from txlcli.runs.run_directory import Run
from txlcli.workflows.training.forecast import planned
from txlcli.workflows.training.options import ScaleOptions, TrainOptions
from txlcli.workflows.training.out_of_memory import USABLE
from txlcli.workflows.training.plan import Plan
from txlcli.workflows.training.resolve import resolve
from txlcli.workflows.workspace import Workspace

GPU = torch.device("cuda")
MAX_DEVICES = 512
"""Largest number of devices in the table of a recipe."""
BACKWARD_SHARE = 2 / 3
"""Share of the backward pass in the operations of a step."""
GRADIENT_BYTES = {"fp32": 4, "bf16": 2}
"""Bytes of a gradient that is sent, by train.exchange_precision."""


@dataclass(frozen=True, kw_only=True)
class DeviceCost:
    """Cost of a training run on a number of GPUs; times are None without their speed, `fits` without their memory."""

    devices: int
    batch_size_per_device: int
    share_of_peak: float | None
    """Of the data sheet, without the exchange."""
    share_source: str
    """The measurement that the time is from."""
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
    """Cost of a training run on several numbers of GPUs."""

    plan: Plan
    options: ScaleOptions
    by_devices: tuple[DeviceCost, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl recipes scale --json` prints."""
        options = self.options
        run = self.plan.run
        train = run.settings.train
        return {
            "recipe": run.recipe_name,
            "parameters": run.parameters,
            "vocab_size": run.vocab_size,
            "precision": train.precision,
            "steps": self.plan.steps,
            "batch_size": train.batch_size,
            "accumulate": train.accumulate,
            "device_memory_bytes": options.device_memory,
            "usable_share": USABLE,
            "bandwidth_bytes_per_s": options.bandwidth,
            "device_flops_per_s": options.device_flops,
            "training_flops_per_token": self.plan.flops_per_token,
            "parallel": train.parallel,
            "by_devices": self.by_devices,
        }


def run(source: str, options: ScaleOptions, workspace: Workspace) -> ScaleForecast:
    """Return the cost of a recipe on each of 1 to MAX_DEVICES GPUs, in powers of two, as far as its batch divides.

    What only the GPUs themselves can reject is not checked.
    """
    request = resolve(source, TrainOptions(overrides=options.overrides), workspace)
    plan = planned(request, workspace, GPU)
    train = plan.run.settings.train
    max_devices = min(MAX_DEVICES, train.batch_size // train.accumulate)
    if train.deterministic:
        max_devices = 1
    counts = [2**power for power in range(max_devices.bit_length())]
    by_devices = tuple(_cost(plan, options, devices) for devices in counts)
    return ScaleForecast(plan=plan, options=options, by_devices=by_devices)


def _cost(plan: Plan, options: ScaleOptions, devices: int) -> DeviceCost:
    """Return the cost of the run on a number of GPUs."""
    run = plan.run
    train = run.settings.train
    needed = step_bytes(run.settings.model, run.vocab_size, train, device=GPU, processes=devices)
    by_purpose = needed.to_json()
    parameters = by_purpose.pop("weights")
    exchanged = _sent_bytes(train) * (devices - 1) * run.parameters // devices
    rank_settings = of_one_process(train, devices)
    expected = plan.expected_step(rank_settings)
    peak_flops_per_s = options.device_flops
    share_of_peak = None
    step_s = None
    tokens_per_s = None
    seconds = None
    if peak_flops_per_s is not None:
        rank_flops = plan.step_flops(rank_settings)
        compute_s = expected.seconds(rank_flops, product_flops_per_s(peak_flops_per_s))
        share_of_peak = rank_flops / (compute_s * peak_flops_per_s)
        exchange_s = exchanged / (options.bandwidth or math.inf)
        step_s = compute_s + _visible_exchange_s(run, exchange_s, compute_s)
        tokens_per_s = train.batch_size * train.seg_len / step_s
        seconds = plan.steps * step_s
    fits = None
    if options.device_memory is not None:
        fits = needed.total <= USABLE * options.device_memory
    return DeviceCost(
        devices=devices,
        batch_size_per_device=rank_settings.batch_size,
        share_of_peak=share_of_peak,
        share_source=expected.source,
        device_bytes={"parameters": parameters, **by_purpose},
        exchanged_bytes=exchanged,
        step_s=step_s,
        tokens_per_s=tokens_per_s,
        seconds=seconds,
        fits=fits,
    )


def _sent_bytes(train: TrainSettings) -> int:
    """Return the bytes of each parameter that a step sends around the ring of all devices."""
    gradient = GRADIENT_BYTES[train.exchange_precision]
    if train.parallel == "zero":  # gradients go to the process that updates the weight, which sends the weight
        return gradient + FLOAT_BYTES
    if train.parallel == "fsdp":  # for each part of the batch, weights go to all processes twice
        return train.accumulate * (gradient + 2 * FLOAT_BYTES)
    return 2 * gradient


def _visible_exchange_s(run: Run, exchange_s: float, compute_s: float) -> float:
    """Return the part of the time of an exchange that the computation of a step does not hide, in seconds.

    The exchange runs during the backward pass of the last micro-batch, with fsdp of each one, except for the gradients
    of the embedding: that of a tied table is ready at the end of the backward pass only.
    """
    train = run.settings.train
    in_backward = 1.0
    if train.parallel == "zero":
        in_backward = GRADIENT_BYTES[train.exchange_precision] / _sent_bytes(train)  # then come the weights
    late_share = parameters_by_part(run.settings.model, run.vocab_size)["embedding"] / run.parameters
    backward_s = BACKWARD_SHARE * compute_s
    if train.parallel != "fsdp":
        backward_s /= train.accumulate
    return exchange_s - min((1 - late_share) * in_backward * exchange_s, backward_s)
