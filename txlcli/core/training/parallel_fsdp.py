"""Fully sharded training by PyTorch's FSDP2: weights, gradients and optimizer state are divided over the processes.

Each process holds a contiguous part of the first axis of every tensor. The layers are gathered one at a time, when they
compute; embedding, softmax, positions and final norm (the root) are gathered for the whole forward and backward pass.

With train.precision = "bf16", the matrices of the layers are sent and multiplied in bf16. Their master copies, all
gradients that are added up, norms and root stay fp32: a norm's gain is close to 1, and a row of the embedding sums the
gradients of all its tokens.
"""

import functools
from collections.abc import Callable
from typing import ClassVar

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.optim import Optimizer

from txlcli.config.settings import EvalSettings
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.reading.reader import Reader, StateReader
from txlcli.core.training.parallel import DataParallel, P, Result


class FullyShardedParallel(DataParallel):
    """Weights, gradients, optimizer state and averages are divided over the processes.

    Gradients of each micro-batch are divided at once: whole ones would take the memory that is to be saved.
    """

    is_divided: ClassVar[bool] = True

    def _prepare(self) -> None:
        assert self.world.steps is not None
        device_type = "cuda" if distributed.get_backend(self.world.steps) == "nccl" else "cpu"
        self._mesh = DeviceMesh.from_group(self.world.steps, device_type)
        is_bf16 = self.settings.precision == "bf16"
        for layer in getattr(self.model, "layers", ()):
            _shard_layer(layer, self._mesh, bf16=is_bf16, keeps_gathered=self.model.has_layer_losses)
        self._module = _CalledModule(self.model)
        fully_shard(self._module, mesh=self._mesh)
        self.gradient_factor = self.world.size

    def with_all_weights(self, method: Callable[P, Result]) -> Callable[P, Result]:
        self._drop_gathered()

        def call(*args: P.args, **kwargs: P.kwargs) -> Result:
            # FSDP would move inputs that it sees to the device, also targets that are read on the host.
            result: Result = self._module(functools.partial(method, *args, **kwargs))
            return result

        return call

    def _drop_gathered(self) -> None:
        """Drop the weights that an earlier forward pass has left gathered: they may have changed since."""
        for module in self._module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def make_reader(self, settings: EvalSettings, *, length: int) -> Reader:
        return _ShardedReader(self, settings)

    def _make_optimizer(self) -> Optimizer:
        optimizer = super()._make_optimizer()
        if isinstance(optimizer, torch.optim.SGD):  # PyTorch has no fused SGD for divided tensors
            for group in optimizer.param_groups:
                group["fused"] = False
        return optimizer

    def total_norm(self, gradients: list[Tensor]) -> Tensor:
        return _whole(super().total_norm(gradients))

    def first_memory(self, batch_size: int, mem_len: int) -> Memory:
        """Return the memory before the first token, whole: tensors that a model makes like its weights are divided."""
        return [_whole(tensor) for tensor in super().first_memory(batch_size, mem_len)]

    def own_weights(self) -> dict[str, Tensor]:
        self._drop_gathered()
        return super().own_weights()

    def own_part(self, whole: Tensor) -> Tensor:
        divided = distribute_tensor(whole, self._mesh, [Shard(0)], src_data_rank=None)
        return divided.clone()  # the part alone, which was a view of the whole

    def gather(self, own: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return whole tensors in host memory; one is gathered at a time."""
        gathered = {}
        for name, tensor in own.items():
            whole = _whole(tensor)
            if self.world.is_rank_zero:
                gathered[name] = whole.to("cpu", copy=True)
        return gathered


class _CalledModule(nn.Module):
    """A module whose forward pass calls a function of a model: the hooks of FSDP run before and after it."""

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Result]) -> Result:
        """Call the function."""
        return compute()


class _ShardedReader(StateReader):
    """Reads with the model itself, since the weights of a layer are there only while it computes."""

    def __init__(self, parallel: FullyShardedParallel, settings: EvalSettings) -> None:
        self._parallel = parallel
        super().__init__(parallel.model, settings)

    def _prepare(self, model: LanguageModel, tokens: int) -> LanguageModel:
        return model.eval()

    def _first_memory(self) -> Memory:
        return self._parallel.first_memory(self.settings.batch_size, self.mem_len)

    @torch.no_grad()
    def read(self, tokens: Tensor) -> Tensor:
        memory = self.state or self._first_memory()
        with self._autocast:
            read = self._parallel.with_all_weights(self.model)
            hidden, self.state = read(tokens, memory, mem_len=self.mem_len)
        return hidden


def _shard_layer(layer: nn.Module, mesh: DeviceMesh, *, bf16: bool, keeps_gathered: bool) -> None:
    """Divide the weights of a layer; with `bf16`, send its matrices in bf16, unless a kernel reads them in fp32.

    `keeps_gathered` leaves them whole until the backward pass, which FSDP prepares only for the outputs of a layer.
    """
    policy = MixedPrecisionPolicy()
    reads_fp32 = any(isinstance(module, nn.RNNBase) for module in layer.modules())
    if bf16 and not reads_fp32:
        norms = [module for module in layer.modules() if isinstance(module, nn.LayerNorm | nn.RMSNorm)]
        for norm in norms:
            fully_shard(norm, mesh=mesh, reshard_after_forward=not keeps_gathered)
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, cast_forward_inputs=False)
    fully_shard(layer, mesh=mesh, mp_policy=policy, reshard_after_forward=not keeps_gathered)


@torch.no_grad()
def _whole(tensor: Tensor) -> Tensor:
    """Return the whole of a tensor that may be divided; all processes must call this."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
