"""The modes of train.parallel: how processes share weights, gradients and optimizer state.

`DataParallel` is the mode "ddp", the interface of the other modes, and the training of a single process. `ZeroParallel`
is "zero", and `parallel_fsdp` has "fsdp".
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.training import checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.optimizer import OPTIMIZERS, ModelPart, make_optimizer

FLOAT_BYTES = 4
"""Bytes of an element of weights, gradients and optimizer state, which stay fp32."""
P = ParamSpec("P")
Result = TypeVar("Result")


class DataParallel:
    """Weights and optimizer state that each process holds, as rank 0 begins with them."""

    is_divided: ClassVar[bool] = False
    """True if each process holds some of the weights or a part of each; `gather` then returns copies."""

    def __init__(self, model: LanguageModel, settings: TrainSettings, world: World) -> None:
        self.model = model
        self.settings = settings
        self.world = world
        self.owners: dict[str, int] = {}
        """The process that updates each parameter; empty if each process updates all of them."""
        self.gradient_factor = 1
        """Number by which the exchange divides the sum of the gradients of all processes."""
        for parameter in model.parameters():
            world.broadcast(parameter.data)
        self._prepare()
        self.optimizer = self._make_optimizer()

    def _prepare(self) -> None:
        """Prepare what a mode needs before there is an optimizer."""

    def with_all_weights(self, method: Callable[P, Result]) -> Callable[P, Result]:
        """Return a method of the model for one call, in which it reads the weights of all processes."""
        return method

    def receive_updates(self) -> None:
        """Let this process read all weights as they are after the last update; all processes must call this."""

    def make_reader(self, settings: EvalSettings, *, length: int) -> Reader:
        """Return a reader of the model in training; all processes must read as many segments."""
        return make_reader(self.model, settings, length=length)

    def _make_optimizer(self) -> Optimizer:
        return make_optimizer(self.model, self.settings)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of all gradients together (0-d), once they are averaged."""
        return nn.utils.get_total_norm(gradients)

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return the memory before the first token."""
        return self.model.first_memory(batch_size, mem_len)

    def own_weights(self) -> dict[str, Tensor]:
        """Return the weights by name that this process updates, or its parts of them; changes in place change these."""
        return dict(self.model.named_parameters())

    def own_part(self, whole: Tensor) -> Tensor:
        """Return the part of a tensor with the shape of a weight that this process holds of the weight."""
        return whole.to(self.model.device)

    def gather(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors by name on rank 0; all processes must call this."""
        return own if self.world.is_rank_zero else {}

    def gather_optimizer(self) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name on rank 0; all processes must call this."""
        return self.gather(checkpoint.optimizer_tensors(self.own_weights(), self.optimizer))

    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of this process, `NAME.KEY`, from the state of the whole optimizer.

        Raises a ValueError for a tensor that has neither the shape of its weight nor a single element.
        """
        weights = self.own_weights()
        for full_name, whole in tensors.items():
            name, _, key = full_name.rpartition(".")
            if name not in weights:
                continue
            weight = weights[name]
            if whole.dim() and whole.shape != weight.shape:
                raise ValueError(f"the optimizer's {full_name} has another shape than its weight")
            # Fused kernels need the step counter on the device of the parameter.
            value = self.own_part(whole) if whole.dim() else whole.to(weight.device)
            state = self.optimizer.state[weight]
            if key in state:  # perhaps a view of a buffer
                state[key].copy_(value)
            else:
                state[key] = value


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
    """ZeRO stage 1 (Rajbhandari et al. 2020): each process updates some of the weights, and keeps only their state.

    Each tensor belongs to one process as a whole, so that optimizers that look at a whole matrix work as ever. What
    other processes update is current between the beginning of a forward pass and the next update.
    """

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
