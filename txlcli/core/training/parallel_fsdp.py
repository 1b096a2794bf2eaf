"""Fully sharded training by PyTorch's FSDP2: weights, gradients and optimizer state are divided over the processes.

Each process holds a contiguous part of the first axis of every tensor. The layers are gathered one at a time, when they
compute; embedding, softmax, positions and final norm (the root) are gathered for the whole forward and backward pass.

With train.precision = "bf16", the matrices of the layers are sent and multiplied in bf16. Their master copies, all
gradients that are added up, norms and root stay fp32: a norm's gain is close to 1, and a row of the embedding sums the
gradients of all its tokens.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings, TrainSettings
from txlcli.core.kernels.device import autocast
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader, StateReader
from txlcli.core.training import checkpoint
from txlcli.core.training.data_parallel import Command, World
from txlcli.core.training.parallel_ddp import DataParallel, Objective


class FullyShardedParallel(DataParallel):
    """Weights, gradients, optimizer state and averages are divided over the processes.

    Args:
        model: with its weights in host memory, which leaves no second copy on the device.
        settings: the recipe's [train] section.
        world: the processes.
        device: to train on.
    """

    state_is_divided: ClassVar[bool] = True
    weights_are_divided: ClassVar[bool] = True

    def __init__(self, model: LanguageModel, settings: TrainSettings, world: World, device: torch.device) -> None:
        super().__init__(model, settings, world)
        assert world.steps is not None
        for parameter in model.parameters():
            distributed.broadcast(parameter.data, src=0, group=world.hosts)
        mesh = DeviceMesh.from_group(world.steps, device.type)
        for layer in getattr(model, "layers", ()):
            _shard_layer(layer, mesh, bf16=settings.precision == "bf16")
        self._root = _Root(model)
        fully_shard(self._root, mesh=mesh)

    @functools.cached_property
    def objective(self) -> "ShardedObjective":
        """The function that a step minimizes, whose backward pass divides the averaged gradients."""
        return ShardedObjective(self._root, self.settings, self.world)

    def make_reader(self, settings: EvalSettings, *, batch_size: int) -> Reader:
        """Return a reader of the model in training; all processes must read as many segments."""
        return _ShardedReader(self, settings, batch_size=batch_size)

    @contextmanager
    def weights_of_rank_0(self, *, differ: bool) -> Iterator[None]:
        """Do nothing: every process has exchanged its part of the weights and their average by itself."""
        yield

    def make_optimizer(self) -> Optimizer:
        """Make the optimizer of the parts of all weights that this process holds.

        Raises:
            RecipeError: see `optimizer.make_optimizer`.
        """
        optimizer = super().make_optimizer()
        if isinstance(optimizer, torch.optim.SGD):  # PyTorch has no fused SGD for divided tensors
            for group in optimizer.param_groups:
                group["fused"] = False
        return optimizer

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        """Return the norm of the gradients of all processes together (0-d)."""
        norm = super().total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def first_memory(self, batch_size: int) -> Memory:
        """Return the memory of a micro-batch before the first token."""
        return _first_memory(self.model, batch_size, self.settings.mem_len)

    def own_weights(self) -> dict[str, Tensor]:
        """Return the part of each weight that this process holds; changes in place change the weight."""
        return {name: _local(weight) for name, weight in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        """Return the divided weights; a forward pass for reading has left those of the root gathered."""
        assert isinstance(self._root, FSDPModule)
        self._root.reshard()
        return dict(self.model.named_parameters())

    def own_part(self, whole: Tensor) -> Tensor:
        """Return the part of a tensor with the shape of a weight that this process holds, on its device."""
        parts = whole.chunk(self.world.size)  # may be fewer than processes
        part = parts[self.world.rank] if self.world.rank < len(parts) else whole[:0]
        return part.to(self.model.device, copy=True)

    def gather_weights(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors from the parts of all processes, on rank 0, in host memory; one is sent at a time."""
        weights = self._weights()
        gathered = {name: self._gather(part, weights[name].shape) for name, part in own.items()}
        return {name: tensor for name, tensor in gathered.items() if tensor is not None}

    def _gather(self, part: Tensor, shape: torch.Size) -> Tensor | None:
        lengths = [len(chunk) for chunk in torch.empty(shape, device="meta").chunk(self.world.size)]
        lengths += [0] * (self.world.size - len(lengths))
        parts = self.world.gather(part, lengths)
        return torch.cat(parts) if parts else None

    def gather_optimizer(self, optimizer: Optimizer) -> dict[str, Tensor]:
        """Return the optimizer's state by parameter name on rank 0, in host memory; one tensor is sent at a time."""
        gathered = {}
        self._weights()
        for name, tensor in checkpoint.optimizer_tensors(self.model, optimizer).items():
            whole = self._gather(_local(tensor), tensor.shape) if isinstance(tensor, DTensor) else tensor.clone()
            if whole is not None:
                gathered[name] = whole
        return gathered

    def restore_optimizer(self, optimizer: Optimizer, tensors: dict[str, Tensor]) -> None:
        """Restore the part of the state that this process holds."""
        weights = self._weights()
        own = {}
        for name, tensor in tensors.items():
            weight = weights[name.rpartition(".")[0]]
            own[name] = self._like(weight, tensor) if tensor.shape == weight.shape else tensor
        checkpoint.restore_optimizer(self.model, optimizer, own)

    def _like(self, weight: Tensor, whole: Tensor) -> Tensor:
        """Return a tensor with the shape of a weight, divided as the weight is."""
        assert isinstance(weight, DTensor)
        return DTensor.from_local(
            self.own_part(whole),
            weight.device_mesh,
            [Shard(0)],
            run_check=False,
            shape=weight.shape,
            stride=weight.stride(),
        )


class ShardedObjective(Objective):
    """`LanguageModel.objective` for the lanes of one process; the backward pass divides averaged gradients.

    Args:
        root: its forward pass gathers the weights.
        settings: the recipe's [train] section.
        world: the processes.
    """

    def __init__(self, root: "_Root", settings: TrainSettings, world: World) -> None:
        self._model, self._root, self._settings, self._world = root.model, root, settings, world

    def __call__(self, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
        """Call `LanguageModel.objective` with the same arguments."""
        self._forget_gathered()
        result: tuple[Tensor, Tensor, list[Tensor]] = self._root(self._model.objective, *args, **kwargs)
        return result

    def no_sync(self) -> AbstractContextManager[object]:
        """Divide the gradients of each micro-batch: whole ones would take the memory that is to be saved."""
        return nullcontext()

    def read(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Call the model, in rank 0 alone; embedding and softmax can then be used until the next call."""
        self._world.send_command(Command.read)
        return self.read_together(tokens, memory, mem_len=mem_len)

    def help_reading(self) -> None:
        """Send the weights of this process to those that read a segment: by reading a token."""
        model, device = self._model, self._model.device
        was_training = model.training
        token = torch.zeros(1, 1, dtype=torch.int64, device=device)
        model.eval()
        try:
            with autocast(device, self._settings.precision):
                self.read_together(token, _first_memory(model, 1, 0), mem_len=0)
        finally:
            model.train(was_training)

    @torch.no_grad()
    def read_together(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Call the model in all processes, each with its own tokens."""
        self._forget_gathered()
        result: tuple[Tensor, Memory] = self._root(self._model, tokens, memory, mem_len=mem_len)
        return result

    def _forget_gathered(self) -> None:
        """Drop the weights of the root that an earlier forward pass has gathered: they may have changed since."""
        assert isinstance(self._root, FSDPModule)
        self._root.reshard()


class _Root(nn.Module):
    """A module whose forward pass calls any function of a model, with the weights of the root gathered."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)


class _ShardedReader(StateReader):
    """Reads with the model itself, since the weights of a layer are there only while it computes."""

    def __init__(self, parallel: FullyShardedParallel, settings: EvalSettings, *, batch_size: int) -> None:
        self._objective = parallel.objective
        super().__init__(parallel.model, settings, batch_size=batch_size, precision=parallel.settings.precision)

    def _prepare(self, model: LanguageModel, precision: str) -> LanguageModel:
        return model.eval()

    def reset(self) -> None:
        """Forget everything that was read."""
        self.state = _first_memory(self.model, self._batch_size, self._first_len)

    def read(self, tokens: Tensor) -> Tensor:
        """Read a segment (B, l), l <= L, and return its last hidden states (B, l, d)."""
        with self._autocast:
            hidden, self.state = self._objective.read_together(tokens, self.state, mem_len=self._mem_len)
        return hidden


def _first_memory(model: LanguageModel, batch_size: int, mem_len: int) -> Memory:
    """Return the memory before the first token, whole: new tensors that a model makes like its weights are divided."""
    memory = model.first_memory(batch_size, mem_len)
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in memory]


def _shard_layer(layer: nn.Module, mesh: DeviceMesh, *, bf16: bool) -> None:
    """Divide the weights of a layer; with `bf16`, send its matrices in bf16, unless a kernel reads them in fp32."""
    policy, modules = MixedPrecisionPolicy(), list(layer.modules())
    if bf16 and not any(isinstance(module, nn.RNNBase) for module in modules):
        for module in modules:
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                fully_shard(module, mesh=mesh)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(layer, mesh=mesh, mp_policy=policy)


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a divided tensor that this process holds, without a copy."""
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        local: Tensor = tensor.to_local()
    return local
