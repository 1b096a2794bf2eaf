"""Private names of PyTorch that txl uses, each behind one function; `pyproject.toml` bounds the release for them."""

import os
import platform
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import SimpleNamespace
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

P = ParamSpec("P")
R = TypeVar("R")


class DispatchMode(TorchDispatchMode):
    """Calls its `__torch_dispatch__` in place of every operator inside its block."""


foreach = SimpleNamespace(
    add_=torch._foreach_add_,
    addcmul_=torch._foreach_addcmul_,
    copy_=torch._foreach_copy_,
    lerp=torch._foreach_lerp,
    lerp_=torch._foreach_lerp_,
    mul_=torch._foreach_mul_,
    norm=torch._foreach_norm,
    sub_=torch._foreach_sub_,
)
"""PyTorch's operations on lists of tensors, a few kernels for all of them: `foreach.mul_(tensors, 0.5)`."""


def softmax_backward(grad: Tensor, probability: Tensor) -> Tensor:
    """Return the gradient of the scores, given the gradient of their softmax over the last axis."""
    return torch._softmax_backward_data(grad, probability, -1, probability.dtype)


def add_to_rows(table: Tensor, ids: Tensor, values: Tensor) -> None:
    """Add values (..., w) to the rows of a table that have these ids (...), all of which exist.

    On CUDA the order of the additions does not change. `index_put_` would wait for the device, to check the ids.
    """
    torch._index_put_impl_(table, [ids], values, accumulate=True, unsafe=True)


def prepare_compiler() -> None:
    """Let torch.compile compile one function for many shapes, and whole graphs under DistributedDataParallel.

    Each release of PyTorch keeps what it has compiled in a directory of its own.
    """
    from torch._dynamo import config  # noqa: PLC0415 - takes as long to import as the rest of PyTorch
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir  # noqa: PLC0415

    if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = f"{default_cache_dir()}-{torch.__version__}"
    config.optimize_ddp = False
    config.recompile_limit = 64


def compiler_failures() -> type[Exception]:
    """Return the base class of what torch.compile raises if it cannot compile a function."""
    from torch._dynamo.exc import TorchDynamoException  # noqa: PLC0415

    return TorchDynamoException


def constant_for_compiler(function: Callable[P, R]) -> Callable[P, R]:
    """Let torch.compile call a function while it traces and keep the result, without importing the compiler."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def changes_input(operator: torch._ops.OpOverload) -> bool:
    """Return True for an operator in place; torch.Tag says so only from PyTorch 2.12 on."""
    return bool(operator._schema.is_mutable)


def tensors_without_data() -> AbstractContextManager[object]:
    """Create tensors that have a shape, a dtype and a device, but no data, inside this block."""
    from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: PLC0415

    return FakeTensorMode()


def swap_parameter(module: torch.nn.Module, name: str, tensor: Tensor) -> None:
    """Let a module read a tensor in place of one of its parameters."""
    module._parameters[name] = tensor  # type: ignore[assignment]


def without_capture_warning(optimizer: torch.optim.Optimizer) -> None:
    """Let an optimizer that can be captured as a CUDA graph also step without one, and not warn of that."""
    optimizer._warned_capturable_if_run_uncaptured = True


def close_pool(pool: tuple[int, int], device: torch.device) -> None:
    """Let the allocator leave the pool of a capture that failed, if it is still in there."""
    number = torch.cuda.current_device() if device.index is None else device.index
    with suppress(RuntimeError):
        torch._C._cuda_endAllocateToPool(number, pool)
        torch._C._cuda_releasePool(number, pool)


def onednn_has_bf16() -> bool:
    """Return True if oneDNN has bf16 kernels for this processor."""
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def processor_has_bf16() -> bool:
    """Return True if the processor has instructions that multiply bf16; without them, oneDNN emulates the products."""
    if platform.machine().lower() not in ("x86_64", "amd64"):
        return onednn_has_bf16()
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def onednn_reorder(weight: Tensor) -> Tensor:
    """Copy a weight (out, in) into the layout that oneDNN reads fastest."""
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return reordered


def onednn_linear(rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return F.linear computed by oneDNN, with an ordinary or a reordered weight."""
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, weight, bias, "none", [], "")
    return product
