"""Forecasts a training run on 1 to 512 GPUs that this machine need not have: memory, gradient exchange and time."""

import dataclasses
from dataclasses import dataclass

import torch

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.measures.forecast import FLOAT, logit_bytes, parameters_by_part, step_bytes
from txlcli.core.training.distributed import of_one_process
from txlcli.workflows.options import ScaleOptions, TrainOptions
from txlcli.workflows.training.forecast import PlannedRun, plan_run
from txlcli.workflows.training.out_of_memory import USABLE
from txlcli.workflows.workspace import Workspace

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


def run(source: str, options: ScaleOptions, workspace: Workspace) -> ScaleForecast:
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
    model, vocab_size, train = planned.run.settings.model, planned.run.vocab_size, planned.run.settings.train
    needed = device_bytes(model, vocab_size, train, devices)
    exchanged = exchanged_bytes(FLOAT * planned.run.parameters, devices, parallel=train.parallel)
    of_one = of_one_process(train, devices)
    share, source = planned.expected_share(of_one, GPU)
    step_s = _step_s(planned, options, of_one.batch_size, exchanged, share=share)
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


def _step_s(
    planned: PlannedRun, options: ScaleOptions, batch_size: int, exchanged: int, *, share: float
) -> float | None:
    """Return the time of a step in seconds, of a GPU with part of the batch; None if the speed of GPUs is unknown.

    The exchange runs during the backward pass of the last micro-batch, except for the gradients of the embedding: that
    of a tied table is ready at the end of the backward pass only.
    """
    run, train = planned.run, planned.run.settings.train
    if options.device_flops is None:
        return None
    compute_s = batch_size * train.seg_len * planned.flops_per_token / (share * options.device_flops)
    if options.bandwidth is None:
        return compute_s
    exchange_s = exchanged / options.bandwidth
    in_backward = ALL_REDUCE / PASSES[train.parallel] if train.parallel == "zero" else 1.0  # then come the weights
    late_share = parameters_by_part(run.settings.model, run.vocab_size)["embedding"] / run.parameters
    hidden_s = min((1 - late_share) * in_backward * exchange_s, BACKWARD_SHARE * compute_s / train.accumulate)
    return compute_s + exchange_s - hidden_s
