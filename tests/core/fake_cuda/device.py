"""What PyTorch's Python side must be told for the device, and a watch over what is done there.

The helper library must be loaded before this is imported.
"""

import contextlib
import functools
from collections import Counter

import numpy as np
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from tests.core.device_cases import COPIES, OneDevice

CUDA = torch.device("cuda:0")


class Chance:
    """The device's generator, as far as one can be seen from outside: the states that were read and set, by number."""

    def __init__(self):
        self.forget()

    def forget(self):
        """Begin a new log."""
        self.log, self._states = [], []

    def get(self, device="cuda"):
        """A state like no other."""
        assert torch.device(device).type == "cuda"
        self._states.append(torch.from_numpy(np.zeros(16, dtype=np.uint8)))
        self.log.append(("read", len(self._states) - 1))
        return self._states[-1]

    def set(self, state, device="cuda"):
        """Only one that was read here can be set."""
        assert torch.device(device).type == "cuda"
        self.log.append(("set", next(number for number, known in enumerate(self._states) if known is state)))

    def seed(self, seed):
        """Note the seed."""
        self.log.append(("seed", seed))


CHANCE = Chance()


class _NoGenerator:
    """Stands for torch.Generator: where nothing is drawn, it has no state."""

    def __init__(self, device):
        assert device.type == "cuda"

    def manual_seed(self, seed):
        """An operation that gets None takes the device's own."""


UNKNOWN = {
    "_local_scalar_dense": lambda tensor: np.zeros((), dtype=_numpy_dtype(tensor)).item(),
    "nonzero": lambda tensor: tensor.new_empty((tensor.numel() // 8, tensor.dim()), dtype=torch.int64),
}
"""What no shape tells, and what is made up for it."""


def _numpy_dtype(tensor):
    return np.dtype(str(tensor.dtype).removeprefix("torch."))


def _apply(module, change, recurse=True):
    """nn.Module._apply without the exchange of contents, which tensors without any refuse."""
    for child in module.children():
        child._apply(change)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = torch.nn.Parameter(change(parameter.detach()), parameter.requires_grad)
    return module


def _deepcopy(tensor, memo):
    """Tensor.__deepcopy__ would copy the mode, too, whose references to storages must not be copied."""
    copied = tensor.detach().clone()
    if isinstance(tensor, torch.nn.Parameter):
        copied = torch.nn.Parameter(copied, tensor.requires_grad)
    return memo.setdefault(id(tensor), copied)


torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # autocast and GradScaler ask it
torch.cuda.is_bf16_supported = lambda *_, **__: True
torch.cuda.get_rng_state, torch.cuda.set_rng_state, torch.cuda.manual_seed = CHANCE.get, CHANCE.set, CHANCE.seed
torch.cuda.synchronize = lambda *_: None
torch.Generator = _NoGenerator
FakeTensor.numpy = lambda tensor: np.zeros(tensor.shape, dtype=_numpy_dtype(tensor))
FakeTensor.tolist = lambda tensor: tensor.cpu().numpy().tolist()
FakeTensor.__deepcopy__ = _deepcopy
torch.nn.Module._apply = _apply


@functools.cache
def _is_composite(func):
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


class Watch(OneDevice):
    """Counts what waits for the device; every number that is asked for is 0."""

    def __init__(self):
        super().__init__()
        self.waits = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Look at the operation, then do it or make up what it would find."""
        if func.namespace == "prim":  # a question about a tensor
            return func(*args, **(kwargs or {}))
        if _is_composite(func):  # only in inference mode are there any
            with self:
                return func.decompose(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        if name in UNKNOWN and isinstance(args[0], FakeTensor):
            self._note(name, args[0])
            return UNKNOWN[name](args[0])
        if name == "_pin_memory":
            pinned = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if func._schema.name in COPIES:
            source = args[1] if name == "copy_" else args[0]
            if result.device.type == "cpu":
                self._note("copy to the host", source)
            elif source.device.type == "cpu" and not getattr(source, "is_pinned_here", False):
                self._note("copy of pageable memory", result)
        return result

    def _note(self, what, tensor):
        if tensor.device.type == "cuda":
            self.waits[what] += 1


@contextlib.contextmanager
def pretending():
    """Tensors made in here have no contents."""
    with FakeTensorMode(allow_non_fake_inputs=True), Watch() as watch:
        yield watch
