"""ZeRO stage 1 (Rajbhandari et al. 2020): each process updates some of the weights, and keeps only their state.

PyTorch's ZeroRedundancyOptimizer divides whole tensors, so that optimizers that look at a whole matrix work as ever.
"""

from typing import Any

import torch
from torch import Tensor
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.optim import Optimizer

from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.training import checkpoint
from txlcli.core.training.optimizer import OPTIMIZERS, ModelPart, make_optimizer, named_groups
from txlcli.core.training.parallel import DataParallel

FLOAT_BYTES = 4
"""Bytes of a number of the optimizer's state, fp32."""


class ZeroParallel(DataParallel):
    """Gradients as with DistributedDataParallel; the optimizer's state is divided over the processes."""

    def _make_optimizer(self) -> Optimizer:
        parameters = dict(self.model.named_parameters())
        groups = named_groups(self.model.settings, self.model.vocab_size, self.settings)
        own_groups = []
        for group in groups:
            own_groups.append(group | {"params": [parameters[name] for name in group["params"]]})
        return ZeroRedundancyOptimizer(
            own_groups,
            optimizer_class=self._make_part,  # type: ignore[arg-type]
            process_group=self.world.steps,
        )

    @property
    def own_optimizer(self) -> Optimizer:
        assert isinstance(self.optimizer, ZeroRedundancyOptimizer)
        return self.optimizer.optim

    def _make_part(self, groups: list[dict[str, Any]]) -> Optimizer:
        """Make the optimizer of the parameters of one process, given in all groups, some of which may be empty."""
        own = set[Tensor]()
        for group in groups:
            own.update(group["params"])
        part = {name: parameter for name, parameter in self.model.named_parameters() if parameter in own}
        return make_optimizer(ModelPart(part), self.settings)

    def gather_optimizer(self) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name on rank 0, in host memory; one tensor is sent at a time."""
        own = checkpoint.optimizer_tensors(self.own_weights(), self.own_optimizer)
        gathered = {}
        for rank, names in enumerate(self.world.gather_objects(list(own))):
            for name in names:
                tensors = self.world.gather(own.get(name, torch.empty(0)))
                if self.world.is_rank_zero:
                    gathered[name] = tensors[rank]
        return gathered


def largest_state_bytes(model: ModelSettings, vocab_size: int, settings: TrainSettings, processes: int) -> int:
    """Return the bytes of optimizer state of the process that has most, without making the model.

    ZeroRedundancyOptimizer gives each tensor in turn, the largest of a group first, to the process with the fewest
    numbers so far.
    """
    count = OPTIMIZERS[settings.optimizer].state_tensors
    elements = [0] * processes
    state = [0] * processes
    for group in named_groups(model, vocab_size, settings):
        largest_first = sorted(group["params"].items(), key=lambda item: item[1].numel(), reverse=True)
        for name, shape in largest_first:
            rank = elements.index(min(elements))
            elements[rank] += shape.numel()
            state[rank] += FLOAT_BYTES * shape.numel() * count(name, shape, settings)
    return max(state)
