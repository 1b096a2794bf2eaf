"""The modes of train.parallel: how the processes of a training share weights, gradients and optimizer state."""

from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.training.data_parallel import World
from txlcli.core.training.parallel_ddp import DataParallel


def make_parallel(model: LanguageModel, settings: TrainSettings, world: World) -> DataParallel:
    """Return the mode that train.parallel names.

    Args:
        model: on its device.
        settings: the recipe's [train] section.
        world: the processes.
    """
    if settings.parallel == "zero":
        from txlcli.core.training.parallel_zero import ZeroParallel  # noqa: PLC0415 - takes a second

        return ZeroParallel(model, settings, world)
    return DataParallel(model, settings, world)
