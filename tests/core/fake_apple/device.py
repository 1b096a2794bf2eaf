"""Replaces PyTorch functions for the fake device, and rejects operations that Apple's GPUs cannot compute.

The helper library must be loaded before this module is imported.
"""

import contextlib
import ctypes

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.core.device_cases import COPIES

APPLE = torch.device("mps")
generator_calls = []
"""What was done with the generator of the device: "read" and "set"."""


def _get_state():
    generator_calls.append("read")
    return torch.zeros(44, dtype=torch.uint8)


def _numpy_dtype(tensor):
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def _deepcopy(tensor, memo):
    """Replace Tensor.__deepcopy__, which would also copy the mode and its references to storages."""
    copied = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    return memo.setdefault(id(tensor), copied)


class _NoGenerator:
    """A stand-in for torch.Generator without a state: nothing is sampled."""

    def __init__(self, device):
        assert device.type == "mps"

    def manual_seed(self, seed):
        """Return None: an operation then uses the device's generator."""


UNKNOWN = {
    "aten::_local_scalar_dense": lambda tensor: np.zeros((), dtype=_numpy_dtype(tensor)).item(),
    "aten::nonzero": lambda tensor: tensor.new_empty((tensor.numel() // 8, tensor.dim()), dtype=torch.int64),
}
"""Operations whose result depends on data, and the results made up for them."""

ctypes.CDLL(None).use_fake_guard()
torch.mps.get_rng_state = lambda device=APPLE: _get_state()
torch.mps.set_rng_state = lambda state, device=APPLE: generator_calls.append("set")
torch.mps.manual_seed = lambda seed: None
torch.mps.synchronize = lambda: None
torch.Generator = _NoGenerator
torch.Tensor.__deepcopy__ = torch.nn.Parameter.__deepcopy__ = FakeTensor.__deepcopy__ = _deepcopy
FakeTensor.numpy = lambda tensor: np.zeros(tensor.shape, dtype=_numpy_dtype(tensor))


class AppleGpu(TorchDispatchMode):
    """Rejects float64 and sparse tensors on the device, and asynchronous copies to it, whose numbers may be wrong."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Look at the operation and its result."""
        kwargs = kwargs or {}
        name = func._schema.name
        if func.namespace == "prim":  # a property of a tensor
            return func(*args, **kwargs)
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        if name in UNKNOWN:
            return UNKNOWN[name](args[0])
        result = func(*args, **kwargs)
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.device.type == "mps":
                assert leaf.dtype != torch.float64, f"{name} of float64"
                assert not leaf.is_sparse, f"{name} of a sparse tensor"
        if name in COPIES and kwargs.get("non_blocking"):
            assert result.device.type != "mps", "asynchronous copy"
        return result


@contextlib.contextmanager
def pretending():
    """Create fake tensors inside this block."""
    with FakeTensorMode(allow_non_fake_inputs=True), AppleGpu():
        yield
