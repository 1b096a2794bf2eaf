"""Data-parallel training by DistributedDataParallel: every process holds all weights and all optimizer state.

This is also the interface of the other modes of train.parallel, and the training of a single process.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.training import checkpoint
from txlcli.core.training.data_parallel import World
from txlcli.core.training.optimizer import make_optimizer


class DataParallel:
    """Weights and optimizer state that each process of a training holds, and the exchange between them.

    Args:
        model: on its device; rank 0's weights count.
        settings: the recipe's [train] section.
        world: the processes.
    """

    state_is_divided: ClassVar[bool] = False
    """True if no process has the whole state of the training, so that none can save it alone."""
    weights_are_divided: ClassVar[bool] = False
    """True if each process holds a part of each weight, and of its average."""

    def __init__(self, model: LanguageModel, settings: TrainSettings, world: World) -> None:
        self.model, self.settings, self.world = model, settings, world

    def make_optimizer(self) -> Optimizer:
        """Make the optimizer of this process.

        Raises:
            RecipeError: see `optimizer.make_optimizer`.
        """
        return make_optimizer(self.model, self.settings)

    @functools.cached_property
    def objective(self) -> "Objective":
        """The function that a step minimizes, whose backward pass averages the gradients of all processes."""
        return Objective(self.model, self.world)

    def make_reader(self, settings: EvalSettings, *, batch_size: int) -> Reader:
        """Return a reader of the model in training; see `registry.make_reader`."""
        return make_reader(self.model, settings, batch_size=batch_size, precision=self.settings.precision)

    @contextmanager
    def weights_of_rank_0(self, *, differ: bool) -> Iterator[None]:
        """Give all processes the weights of rank 0 within this block; all of them must call this.

        Args:
            differ: True if rank 0 has other weights than the other processes, such as an average.
        """
        if not differ or self.world.size == 1:
            yield
            return
        weights = self.own_weights()
        kept = {} if self.world.is_rank_zero else {name: one.detach().clone() for name, one in weights.items()}
        for weight in weights.values():
            distributed.broadcast(weight.data, src=0, group=self.world.steps)
        try:
            yield
        finally:
            for name, tensor in kept.items():
                weights[name].data.copy_(tensor)

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of all gradients together (0-d), once they are averaged."""
        return nn.utils.get_total_norm(gradients)

    def first_memory(self, batch_size: int) -> Memory:
        """Return the memory of a micro-batch before the first token."""
        return self.model.first_memory(batch_size, self.settings.mem_len)

    def own_weights(self) -> dict[str, Tensor]:
        """Return what this process holds of each weight, by name; changes in place change the weight."""
        return dict(self.model.named_parameters())

    def own_part(self, whole: Tensor) -> Tensor:
        """Return what this process holds of a tensor with the shape of a weight, on its device."""
        return whole.to(self.model.device)

    def gather_weights(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole weights, or their average, by name on rank 0; all processes must call this.

        Args:
            own: what this process holds of them.
        """
        return own if self.world.is_rank_zero else {}

    def gather_optimizer(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name on rank 0; all processes must call this."""
        return checkpoint.optimizer_tensors(self.model, optimizer) if self.world.is_rank_zero else {}

    def restore_optimizer(self, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
        """Restore the state of this process from that of the whole optimizer."""
        checkpoint.restore_optimizer(self.model, optimizer, tensors)


class Objective:
    """`LanguageModel.objective` for the lanes of one process; the backward pass averages the gradients of all.

    Args:
        model: on its device, with the weights of rank 0.
        world: the processes.
    """

    def __init__(self, model: LanguageModel, world: World) -> None:
        self._model = model
        self._call: Callable[..., tuple[Tensor, Tensor, list[Tensor]]] = model.objective
        self._parallel: DistributedDataParallel | None = None
        if world.size > 1:
            self._call = self._parallel = DistributedDataParallel(
                _ObjectiveModule(model),
                process_group=world.steps,
                gradient_as_bucket_view=True,  # averaged gradients need no copy out of the buckets
                find_unused_parameters=model.has_idle_weights,
            )

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Call `LanguageModel.objective` with the same arguments."""
        return self._call(*args, **kwargs)

    def no_sync(self) -> AbstractContextManager[object]:
        """Within this block, add gradients to those of this process without averaging them yet."""
        return nullcontext() if self._parallel is None else self._parallel.no_sync()

    def read(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Call the model in rank 0 alone, as `LanguageModel.forward` does, and without gradients.

        `LanguageModel.losses` can be called until the next step.
        """
        with torch.no_grad():
            result: tuple[Tensor, Memory] = self._model(tokens, memory, mem_len=mem_len)
            return result

    def help_reading(self) -> None:
        """Take part in the reading of a segment by other processes, without a segment of this one."""


class _ObjectiveModule(nn.Module):
    """A module whose forward pass is a model's objective, as DistributedDataParallel needs it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Call `LanguageModel.objective`."""
        return self.model.objective(*args, **kwargs)
