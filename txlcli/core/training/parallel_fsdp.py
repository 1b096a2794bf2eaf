"""Fully sharded training by PyTorch's FSDP2: weights, gradients and optimizer state are divided over the processes.

Each process holds a contiguous part of the first axis of every tensor. The layers are gathered one at a time, when they
compute; embedding, softmax, positions and final norm (the root) are gathered for the whole forward and backward pass.

With train.precision = "bf16", the matrices of the layers are sent and multiplied in bf16. Their master copies, all
gradients that are added up, norms and root stay fp32: a norm's gain is close to 1, and a row of the embedding sums the
gradients of all its tokens.
"""

from typing import ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings, LossPart, TrainSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader, StateReader
from txlcli.core.training import checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.parallel import CalledModule, DataParallel, Objective


class FullyShardedParallel(DataParallel):
    """Weights, gradients, optimizer state and averages are divided over the processes.

    Gradients of each micro-batch are divided at once (`no_sync` does nothing): whole ones would take the memory that is
    to be saved.
    """

    weights_are_divided: ClassVar[bool] = True

    def __init__(self, model: LanguageModel, settings: TrainSettings, world: World, device: torch.device) -> None:
        self._device = device
        super().__init__(model, settings, world)

    def _wrap(self, device: torch.device) -> None:
        assert self.world.steps is not None
        for parameter in self.model.parameters():
            distributed.broadcast(parameter.data, src=0, group=self.world.hosts)
        mesh = DeviceMesh.from_group(self.world.steps, self._device.type)
        for layer in getattr(self.model, "layers", ()):
            _shard_layer(
                layer, mesh, bf16=self.settings.precision == "bf16", keeps_gathered=self.model.has_layer_losses
            )
        self._root = self._module = CalledModule(self.model)
        fully_shard(self._root, mesh=mesh)

    def objective(
        self, tokens: Tensor, targets: Tensor, memory: Memory, *, mem_len: int, part: LossPart, progress: float
    ) -> Objective:
        self._drop_gathered()
        return super().objective(tokens, targets, memory, mem_len=mem_len, part=part, progress=progress)

    @torch.no_grad()
    def read(self, tokens: Tensor, memory: Memory, *, mem_len: int) -> tuple[Tensor, Memory]:
        """Call the model in all processes, each with its own tokens of the same number."""
        self._drop_gathered()
        result: tuple[Tensor, Memory] = self._root(lambda: self.model(tokens, memory, mem_len=mem_len))
        return result

    def _drop_gathered(self) -> None:
        """Drop the weights that an earlier forward pass has left gathered: they may have changed since."""
        for module in self._root.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def make_reader(self, settings: EvalSettings, *, batch_size: int) -> Reader:
        return _ShardedReader(self, settings, batch_size=batch_size)

    def make_optimizer(self) -> Optimizer:
        """Make the optimizer of the parts of all weights that this process holds."""
        optimizer = super().make_optimizer()
        if isinstance(optimizer, torch.optim.SGD):  # PyTorch has no fused SGD for divided tensors
            for group in optimizer.param_groups:
                group["fused"] = False
        return optimizer

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        norm = super().total_norm(gradients)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def first_memory(self, batch_size: int) -> Memory:
        return _first_memory(self.model, batch_size, self.settings.mem_len)

    def own_weights(self) -> dict[str, Tensor]:
        return {name: _local(weight) for name, weight in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        """Return the divided weights; a forward pass for reading has left the root's gathered."""
        self._drop_gathered()
        return dict(self.model.named_parameters())

    def own_part(self, whole: Tensor) -> Tensor:
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
        self._drop_gathered()
        for name, tensor in checkpoint.optimizer_tensors(self.model, optimizer).items():
            whole = self._gather(_local(tensor), tensor.shape) if isinstance(tensor, DTensor) else tensor.clone()
            if whole is not None and self.world.is_rank_zero:
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


class _ShardedReader(StateReader):
    """Reads with the model itself, since the weights of a layer are there only while it computes."""

    def __init__(self, parallel: FullyShardedParallel, settings: EvalSettings, *, batch_size: int) -> None:
        self._parallel = parallel
        super().__init__(parallel.model, settings, batch_size=batch_size, precision=parallel.settings.precision)

    def _prepare(self, model: LanguageModel, precision: str) -> LanguageModel:
        return model.eval()

    def _first_memory(self) -> Memory:
        return _first_memory(self.model, self._batch_size, self.mem_len)

    def read(self, tokens: Tensor) -> Tensor:
        with self._autocast:
            hidden, self.state = self._parallel.read(tokens, self.state or self._first_memory(), mem_len=self.mem_len)
        return hidden


def _first_memory(model: LanguageModel, batch_size: int, mem_len: int) -> Memory:
    """Return the memory before the first token, whole: new tensors that a model makes like its weights are divided."""
    memory = model.first_memory(batch_size, mem_len)
    return [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in memory]


def _shard_layer(layer: nn.Module, mesh: DeviceMesh, *, bf16: bool, keeps_gathered: bool) -> None:
    """Divide the weights of a layer; with `bf16`, send its matrices in bf16, unless a kernel reads them in fp32.

    `keeps_gathered` leaves them whole until the backward pass, which FSDP prepares only for the outputs of a layer.
    """
    policy, modules = MixedPrecisionPolicy(), list(layer.modules())
    if bf16 and not any(isinstance(module, nn.RNNBase) for module in modules):
        for module in modules:
            if isinstance(module, nn.LayerNorm | nn.RMSNorm):
                fully_shard(module, mesh=mesh, reshard_after_forward=not keeps_gathered)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not keeps_gathered)


def _local(tensor: Tensor) -> Tensor:
    """Return the part of a divided tensor that this process holds, without a copy."""
    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        local: Tensor = tensor.to_local()
    return local
