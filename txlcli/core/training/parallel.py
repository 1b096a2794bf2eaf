"""The modes of train.parallel: how the processes of a training share weights, gradients and optimizer state."""

import torch

from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.data_parallel import World
from txlcli.core.training.parallel_ddp import DataParallel


def device_of_new_weights(settings: TrainSettings, device: torch.device) -> torch.device:
    """Return the device on which the weights are made: the host, if a device is to hold only a part of them."""
    return torch.device("cpu") if settings.parallel == "fsdp" else device


def make_parallel(model: LanguageModel, settings: TrainSettings, world: World, device: torch.device) -> DataParallel:
    """Return the mode that train.parallel names; a single process holds everything.

    Args:
        model: on `device_of_new_weights`.
        settings: the recipe's [train] section.
        world: the processes.
        device: to train on.
    """
    if world.size == 1:
        return DataParallel(model, settings, world)
    # The imports take a second.
    if settings.parallel == "zero":
        from txlcli.core.training.parallel_zero import ZeroParallel  # noqa: PLC0415

        return ZeroParallel(model, settings, world)
    if settings.parallel == "fsdp":
        from txlcli.core.training.parallel_fsdp import FullyShardedParallel  # noqa: PLC0415

        return FullyShardedParallel(model, settings, world, device)
    return DataParallel(model, settings, world)
