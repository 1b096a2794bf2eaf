"""Replaces PyTorch functions for the fake device, and rejects operations that Apple's GPUs cannot compute.

The helper library must be loaded before this module is imported.
"""

import contextlib
import ctypes

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.core.device_cases import COPIES
from tests.core.fake_tensors import UNKNOWN, deepcopy, pretend_numbers

APPLE = torch.device("mps")
generator_calls = []
"""What was done with the generator of the device: "read" and "set"."""


def _get_state():
    generator_calls.append("read")
    return torch.zeros(44, dtype=torch.uint8)


ctypes.CDLL(None).use_fake_guard()
torch.mps.get_rng_state = lambda device=APPLE: _get_state()
torch.mps.set_rng_state = lambda state, device=APPLE: generator_calls.append("set")
torch.mps.manual_seed = lambda seed: None
torch.mps.synchronize = lambda: None
torch.Tensor.__deepcopy__ = deepcopy
torch.nn.Parameter.__deepcopy__ = deepcopy
pretend_numbers()


class AppleGpu(TorchDispatchMode):
    """Rejects float64 and sparse tensors on the device, and asynchronous copies to it, whose numbers may be wrong."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
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
    with FakeTensorMode(allow_non_fake_inputs=True), AppleGpu():
        yield
