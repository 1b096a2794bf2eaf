"""The modes of train.parallel: how processes share weights, gradients and optimizer state.

`DataParallel` is the mode "ddp", the interface of the other modes, and the training of a single process.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, TypeVar

from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader
from txlcli.core.reading.registry import make_reader
from txlcli.core.training import checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.optimizer import make_optimizer, parameters_of

Computed = TypeVar("Computed", bound=tuple[Any, ...])


class DataParallel:
    """Weights and optimizer state that each process holds, and the exchange of gradients between them."""

    weights_are_divided: ClassVar[bool] = False
    """True if each process holds a part of each weight, and of its average."""

    def __init__(self, model: LanguageModel, settings: TrainSettings, world: World) -> None:
        self.model = model
        self.settings = settings
        self.world = world
        self._module = self._wrapped()
        self.optimizer = self._make_optimizer()

    def _wrapped(self) -> nn.Module:
        """Give all processes the weights of rank 0, and let backward passes average their gradients."""
        if self.world.size > 1:
            return DistributedDataParallel(
                CalledModule(self.model),
                process_group=self.world.steps,
                gradient_as_bucket_view=True,  # averaged gradients need no copy out of the buckets
                find_unused_parameters=self.model.has_idle_weights,
            )
        return CalledModule(self.model)

    def call(self, compute: Callable[[], Computed]) -> Computed:
        """Return what the model computes for the lanes of this process; its backward pass averages gradients."""
        if self.world.size == 1:
            return compute()
        computed: Computed = self._module(compute)
        return computed

    def no_sync(self) -> AbstractContextManager[object]:
        """Within this block, add gradients to this process's without averaging them yet."""
        if isinstance(self._module, DistributedDataParallel):
            return self._module.no_sync()
        return nullcontext()

    def make_reader(self, settings: EvalSettings, *, length: int) -> Reader:
        """Return a reader of the model in training; all processes must read as many segments."""
        return make_reader(self.model, settings, length=length)

    def _make_optimizer(self) -> Optimizer:
        return make_optimizer(self.model, self.settings)

    @property
    def own_optimizer(self) -> Optimizer:
        """Optimizer of the weights that this process updates."""
        return self.optimizer

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of all gradients together (0-d), once they are averaged."""
        return nn.utils.get_total_norm(gradients)

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return the memory before the first token."""
        return self.model.first_memory(batch_size, mem_len)

    def own_weights(self) -> dict[str, Tensor]:
        """Return the weights by name, of which this process may hold a part; changes in place change the weight."""
        return dict(self.model.named_parameters())

    def own_part(self, whole: Tensor) -> Tensor:
        """Return a tensor with the shape of a weight, of which this process holds what it holds of the weight."""
        return whole.to(self.model.device)

    def gather(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors by name on rank 0; all processes must call this."""
        return own if self.world.is_rank_zero else {}

    def gather_optimizer(self) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name on rank 0; all processes must call this."""
        return self.gather(checkpoint.optimizer_tensors(self.own_weights(), self.own_optimizer))

    def restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Restore the state of this process, `NAME.KEY`, from the state of the whole optimizer."""
        optimizer = self.own_optimizer
        weights = self.own_weights()
        own = set(parameters_of(optimizer))
        for full_name, whole in tensors.items():
            name, _, key = full_name.rpartition(".")
            weight = weights[name]
            if weight not in own:
                continue
            state = optimizer.state[weight]
            if whole.shape == weight.shape:
                value = self.own_part(whole)
            else:  # fused kernels need the step counter on the device of the parameter
                value = whole.to(weight.device)
            if key in state:  # perhaps a view of a buffer
                state[key].copy_(value)
            else:
                state[key] = value


class CalledModule(nn.Module):
    """A module whose forward pass calls a function of a model: the hooks of a wrapper run before and after it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Computed]) -> Computed:
        """Call the function."""
        return compute()
