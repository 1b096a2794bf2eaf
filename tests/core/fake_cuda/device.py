"""Replaces PyTorch functions for the fake device, and observes the operations on it.

The helper library must be loaded before this module is imported.
"""

import contextlib
import ctypes
import functools
from collections import Counter

import numpy as np
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.core.device_cases import COPIES, OneDevice
from tests.core.fake_cuda import graphs, triton_device
from tests.core.fake_tensors import UNKNOWN, pretend_numbers
from txlcli.core.training.distributed import World

CUDA = torch.device("cuda:0")


class OneOfSeveral(World):
    """One of several processes, which decides alone: the others do as it does."""

    def max_of(self, *numbers):
        return list(numbers)

    def gather_objects(self, value):
        return [value] * self.size


def world_of(processes):
    """Return the world of rank 0 of several processes, of which the others do not exist: nothing arrives there."""
    if not distributed.is_initialized():
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=processes)
    return OneOfSeveral(0, processes, distributed.group.WORLD, distributed.group.WORLD)


class GeneratorLog:
    """A stand-in for the device's generator, which logs the states that are read and set, by number."""

    def __init__(self):
        self.forget()

    def forget(self):
        self.log, self._states = [], []

    def get(self, device="cuda"):
        assert torch.device(device).type == "cuda"
        self._states.append(torch.from_numpy(np.zeros(16, dtype=np.uint8)))
        self.log.append(("read", len(self._states) - 1))
        return self._states[-1]

    def set(self, state, device="cuda"):
        assert torch.device(device).type == "cuda"
        self.log.append(("set", next(number for number, known in enumerate(self._states) if known is state)))

    def seed(self, seed):
        self.log.append(("seed", seed))


GENERATOR = GeneratorLog()


def _apply(module, change, recurse=True):
    """Replace nn.Module._apply, which swaps data: fake tensors have none."""
    for child in module.children():
        child._apply(change)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            module._parameters[name] = torch.nn.Parameter(change(parameter.detach()), parameter.requires_grad)
    return module


ctypes.CDLL(None).use_fake_guard()
torch.cuda.amp.common.amp_definitely_not_available = lambda: False  # called by autocast and GradScaler
torch.cuda.get_rng_state, torch.cuda.set_rng_state = GENERATOR.get, GENERATOR.set
torch.cuda.manual_seed_all = GENERATOR.seed
torch.cuda.synchronize, torch.cuda.empty_cache = lambda *_: None, lambda: None
torch.cuda.CUDAGraph, torch.cuda.Stream, torch.cuda.stream = graphs.Graph, graphs.Stream, graphs.DEVICE.use
torch.cuda.current_stream = lambda _: graphs.DEVICE.stream or graphs.DEFAULT_STREAM
torch.cuda.is_current_stream_capturing = lambda: graphs.DEVICE.capture is not None
torch.cuda.graph_pool_handle = graphs.DEVICE.new_pool
torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool = graphs.DEVICE.end_pool, graphs.DEVICE.release_pool
pretend_numbers()
FakeTensor.tolist = lambda tensor: tensor.cpu().numpy().tolist()
torch.nn.Module._apply = _apply
ATEN = torch.library.Library("aten", "IMPL")
for _name in (
    "_fused_adam_",
    "_fused_adamw_",
    "_fused_sgd_",
):  # PyTorch knows their shapes without a tensor as rate only
    ATEN.impl(f"{_name}.tensor_lr", lambda *_, **__: None, "Meta")


@functools.cache
def is_composite(func):
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")


class Watch(OneDevice):
    """Counts operations that wait for the device, or allocate on the host in a graph; every value read from it is 0."""

    def __init__(self, fails=lambda name: False):
        super().__init__()
        self._fails = fails
        self.waits = Counter()
        self.replays, self._in_graph = 0, False
        self.names = set()
        self.sent, self.sent_first_in_capture = set(), []
        """What processes have exchanged: operator and size. NCCL may connect them at the first of a kind."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "prim":  # a property of a tensor
            return func(*args, **(kwargs or {}))
        if is_composite(func):  # only in inference mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        name = func._schema.name.removeprefix("aten::")
        self._begin(func, name, args)
        if func._schema.name in UNKNOWN and isinstance(args[0], FakeTensor):
            self._note(name, args[0])
            return UNKNOWN[func._schema.name](args[0])
        if name == "_pin_memory":
            pinned = args[0].clone()
            pinned.is_pinned_here = True
            return pinned
        if torch.Tag.nondeterministic_seeded in func.tags:
            graphs.DEVICE.sample()
        result = super().__torch_dispatch__(func, types, args, kwargs)
        if self._in_graph and any(leaf.device.type == "cpu" for leaf in tree_leaves(result) if torch.is_tensor(leaf)):
            self.waits[f"{name} on the host"] += 1
        if func._schema.name in COPIES:
            source = args[1] if name == "copy_" else args[0]
            if result.device.type == "cpu":
                self._note("copy to the host", source)
            elif source.device.type == "cpu" and not getattr(source, "is_pinned_here", False):
                self._note("copy of pageable memory", result)
        return result

    def _begin(self, func, name, args):
        if func.namespace == "c10d":
            size = sum(leaf.numel() for leaf in tree_leaves(args) if torch.is_tensor(leaf))
            if graphs.DEVICE.capture is not None and (name, size) not in self.sent:
                self.sent_first_in_capture.append(f"{name} of {size}")
            self.sent.add((name, size))
        self.names.add(name)
        if self._fails(name):
            raise RuntimeError(f"no kernel of {name} for this")

    def capture(self, run, device, *, warm_up=0):
        """Stand in for a `cuda_graph.GraphPool` as `tape.call_again` does."""

        def replay():
            self.replays, self._in_graph = self.replays + 1, True
            try:
                return run()
            finally:
                self._in_graph = False

        return replay

    def _note(self, wait, tensor):
        if tensor.device.type == "cuda":
            self.waits[wait] += 1
            graphs.DEVICE.wait()


ALLOCATIONS = {"empty", "new_empty", "empty_like", "empty_strided", "new_empty_strided", "detach", "_unsafe_view"}

LAUNCHES = {"txl::attention_backward": 2, "txl::attend_token": 2, "txl::lamb_moments": 2}
"""Kernels of operators that launch several."""

ONLY_WRITE = ("copy_", "fill_", "zero_")
"""Ends of the names of operations that do not read what they overwrite."""


class Kernels(TorchDispatchMode):
    """Counts operations that launch a kernel, all but views and allocations, and the bytes that they read and write.

    An operation on a list of tensors is one kernel, except for a copy to another dtype, which is one for each tensor.
    Empty tensors need none. `sent` counts the bytes of the tensors that processes exchange.
    """

    def __init__(self):
        super().__init__()
        self.names, self.bytes, self.sent = Counter(), 0, 0

    def __enter__(self):
        triton_device.observers.append(self._note)
        return super().__enter__()

    def __exit__(self, *exception):
        triton_device.observers.remove(self._note)
        return super().__exit__(*exception)

    def _note(self, name, size):
        self.names[name] += 1
        self.bytes += size

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace != "prim" and is_composite(func):  # only in inference mode
            with self:
                return func.decompose(*args, **(kwargs or {}))
        result = func(*args, **(kwargs or {}))
        name, returns = func._schema.name.removeprefix("aten::"), func._schema.returns
        is_view = any(value.alias_info is not None and not value.alias_info.is_write for value in returns)
        if not is_view and name not in ALLOCATIONS and func.namespace != "prim":
            leaves = {id(leaf): leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, torch.Tensor)}
            used = [leaf for leaf in leaves.values() if leaf.device.type == "cuda" and leaf.numel()]
            copies = name == "_foreach_copy_" and len({leaf.dtype for leaf in used}) > 1
            self.names[name] += len(args[0]) if copies else bool(used) * LAUNCHES.get(name, 1)
            self.sent += sum(map(triton_device.size_of, used)) if func.namespace == "c10d" else 0
            written = [
                value
                for value, argument in zip(args, func._schema.arguments, strict=False)
                if argument.is_write
                and value is not None
                and (argument.name != "grads" or (kwargs or {}).get("grad_scale") is not None)
            ]  # fused optimizers write gradients if they scale them
            if name == "_index_put_impl_":  # only rows are read and written
                used = [*used[1:], used[-1], used[-1]]
                written = []
            again = [] if name.endswith(ONLY_WRITE) else tree_leaves(written)
            self.bytes += sum(map(triton_device.size_of, [*used, *again]))
        return result


@contextlib.contextmanager
def pretending(fails=lambda name: False):
    """Create fake tensors inside this block; operators raise an error if `fails` of their name is true."""
    with FakeTensorMode(allow_non_fake_inputs=True), Watch(fails) as watch:
        yield watch
