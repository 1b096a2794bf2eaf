"""Memory and gradient exchange of a GPU that shares a batch with others.

Axes: B batch.
"""

import dataclasses
import functools
from collections.abc import Iterable

import torch

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.measures.footprint import FLOAT, logit_bytes, state_bytes, step_bytes
from txlcli.core.model.registry import make_model
from txlcli.core.training.data_parallel import of_one_process

GPU = torch.device("cuda")
FIRST_BUCKET_BYTES, BUCKET_BYTES = 1 << 20, 25 << 20
"""DistributedDataParallel's defaults: a bucket is full once it has this many bytes."""
LARGEST_COUNTED = 3
"""Largest micro-batch that is counted; memory grows linearly beyond it."""


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


def model_buckets(model: ModelSettings, vocab_size: int) -> list[int]:
    """Return the bytes of a model's buckets; its last parameters have the first gradients."""
    with torch.device("meta"):
        parameters = list(make_model(model, vocab_size).parameters())
    return gradient_buckets(FLOAT * parameter.numel() for parameter in reversed(parameters))


ALL_REDUCE = 2
"""Times that an all-reduce sends nearly all gradients around the ring."""
PASSES = {"ddp": ALL_REDUCE, "zero": ALL_REDUCE + 1, "fsdp": 3}
"""Times that a step sends nearly all weights or gradients around the ring, counted in fp32: zero sends the updated
weights, too; fsdp sends the weights twice, and the gradients once."""


def exchanged_bytes(gradient_bytes: int, devices: int, *, parallel: str = "ddp") -> int:
    """Return the bytes that each device sends, and receives, in a step.

    Args:
        gradient_bytes: of all gradients.
        devices: that share the batch.
        parallel: mode of train.parallel.
    """
    return PASSES[parallel] * (devices - 1) * gradient_bytes // devices


class DeviceMemory:
    """Bytes of a training step on the GPU with the largest part of the batch, for any number of GPUs.

    Each micro-batch up to LARGEST_COUNTED is counted once, with and without recomputation.

    Args:
        model: settings of the model.
        vocab_size: V.
    """

    def __init__(self, model: ModelSettings, vocab_size: int) -> None:
        self._count = functools.cache(functools.partial(_count, model, vocab_size))
        self._state = functools.cache(functools.partial(state_bytes, model, vocab_size, device=GPU))

    def __call__(self, train: TrainSettings, devices: int) -> dict[str, int]:
        """Return the bytes by purpose.

        Args:
            train: settings of the whole training.
            devices: that share the batch.

        Raises:
            RecipeError: the batch is too small.
        """
        if devices == 1:
            train = dataclasses.replace(train, parallel="ddp")
        of_one = of_one_process(train, devices)
        size = of_one.batch_size // of_one.accumulate
        needed = self._of_micro_batch(_common(of_one), size)
        needed["memory"] *= of_one.accumulate
        return needed | _named(self._state(_common(train), processes=devices))

    def _of_micro_batch(self, common: TrainSettings, size: int) -> dict[str, int]:
        if size <= LARGEST_COUNTED:
            return dict(self._count(common, size))
        below, counted = (self._count(common, smaller) for smaller in (LARGEST_COUNTED - 1, LARGEST_COUNTED))
        return {part: counted[part] + (counted[part] - below[part]) * (size - LARGEST_COUNTED) for part in counted}


def _common(train: TrainSettings) -> TrainSettings:
    """Return the settings without those that differ between divisions of a batch."""
    return dataclasses.replace(train, batch_size=1, accumulate=1)


def _named(state: dict[str, int]) -> dict[str, int]:
    """Return bytes by purpose, with the parameters under their name in the table."""
    return {"parameters" if purpose == "weights" else purpose: size for purpose, size in state.items()}


def _count(model: ModelSettings, vocab_size: int, common: TrainSettings, size: int) -> dict[str, int]:
    train = dataclasses.replace(common, batch_size=size)
    needed = step_bytes(model, vocab_size, train, device=GPU)
    logits = logit_bytes(model, vocab_size, train, device=GPU)
    return {
        **_named(state_bytes(model, vocab_size, train, device=GPU)),
        "memory": needed["memory"],
        "activations": needed["activations"] - logits,
        "logits": logits,
    }
