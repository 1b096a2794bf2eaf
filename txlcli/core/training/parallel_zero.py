"""ZeRO stage 1 (Rajbhandari et al. 2020): each process updates some of the weights, and keeps only their state.

Each tensor belongs to one process as a whole, so that optimizers that look at a whole matrix work as ever. What other
processes update is current between the beginning of a forward pass and the next update.
"""

from collections.abc import Mapping
from typing import ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from txlcli.config.train_settings import TrainSettings
from txlcli.core.training.optimizer import OPTIMIZERS, ModelPart, make_optimizer
from txlcli.core.training.parallel import DataParallel

FLOAT_BYTES = 4
"""Bytes of an element of weights, gradients and optimizer state, which stay fp32."""


def assign_owners(shapes: Mapping[str, torch.Size], processes: int) -> dict[str, int]:
    """Return the process that updates each parameter: in turn, the largest first, the one with the fewest elements."""
    elements = [0] * processes
    ranks = {}
    for name, shape in sorted(shapes.items(), key=lambda item: item[1].numel(), reverse=True):
        rank = elements.index(min(elements))
        ranks[name] = rank
        elements[rank] += shape.numel()
    return ranks


class ZeroParallel(DataParallel):
    """The optimizer's state and averages are divided over the processes."""

    is_divided: ClassVar[bool] = True

    def _prepare(self) -> None:
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        self.owners = assign_owners(shapes, self.world.size)

    def receive_updates(self) -> None:
        for name, parameter in self.model.named_parameters():
            self.world.broadcast(parameter.data, self.owners[name])

    def _make_optimizer(self) -> Optimizer:
        own = {name: parameter for name, parameter in self.model.named_parameters() if self._is_own(name)}
        return make_optimizer(ModelPart(own), self.settings)

    def _is_own(self, name: str) -> bool:
        return self.owners[name] == self.world.rank

    def own_weights(self) -> dict[str, Tensor]:
        return {name: weight for name, weight in super().own_weights().items() if self._is_own(name)}

    def gather(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors in host memory; one is sent at a time."""
        gathered = {}
        for rank, names in enumerate(self.world.gather_objects(list(own))):
            for name in names:
                tensors = self.world.gather(own.get(name, torch.empty(0)))
                if self.world.is_rank_zero:
                    gathered[name] = tensors[rank]
        return gathered


def largest_share_bytes(shapes: Mapping[str, torch.Size], settings: TrainSettings, processes: int) -> tuple[int, int]:
    """Return the most bytes of weights that a process updates, and the most bytes of optimizer state that one keeps."""
    count = OPTIMIZERS[settings.optimizer].state_tensors
    weights = [0] * processes
    state = [0] * processes
    for name, rank in assign_owners(shapes, processes).items():
        size = FLOAT_BYTES * shapes[name].numel()
        weights[rank] += size
        state[rank] += size * count(name, shapes[name], settings)
    return max(weights), max(state)
