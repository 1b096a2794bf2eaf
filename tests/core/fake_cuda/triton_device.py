"""Lets Inductor and Triton compile kernels for the fake device, an H200.

Kernels are compiled to machine code that is never run. With TRITON_INTERPRET=1, Triton's interpreter runs them instead,
on the CPU, on tensors with data that belong to the fake ones.
"""

import os
from types import SimpleNamespace

import torch
from torch._inductor import config
from torch._inductor.fx_passes import fuse_attention, pad_mm
from torch._inductor.output_code import CompiledFxGraph
from torch._inductor.runtime import triton_helpers
from torch._inductor.runtime.triton_heuristics import CachingAutotuner
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

KERNELS = []
"""Name and bytes of shared memory of each compiled kernel."""
MODE = FakeTensorMode(allow_non_fake_inputs=True)


class _Driver:
    """A driver of Triton for a device that launches nothing."""

    def get_current_target(self):
        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_device_interface(self):
        return torch.cuda

    def get_active_torch_device(self):
        return torch.device("cuda:0")


def _note_kernel(autotuner, result):
    """Record a kernel instead of loading it."""
    KERNELS.append((autotuner.fn.__name__, result.kernel.shared))
    return SimpleNamespace(config=result.config), None


def _reinterpreted(tensor, size, stride, offset=0):
    return torch.as_strided(tensor, size, stride, tensor.storage_offset() + offset)


def _fake_tensor(size, stride, dtype):
    with MODE:
        return torch.empty_strided(size, stride, dtype=dtype, device="cuda")


def _uninitialised(size, stride, dtype):
    """Return a tensor in which values that are not written can be recognised."""
    return torch.empty_strided(size, stride, dtype=dtype).fill_(float("nan") if dtype.is_floating_point else -1)


class Twins:
    """A tensor with data for each fake tensor that a compiled graph reads or returns."""

    def __init__(self):
        self._known = {}  # by storage, which is kept in memory

    def pretend(self, numbers, *, requires_grad=False):
        """Return a fake tensor on the device for this data."""
        with MODE:
            there = torch.empty_strided(numbers.shape, numbers.stride(), dtype=numbers.dtype, device="cuda")
        storage = there.untyped_storage()
        self._known[id(storage)] = storage, numbers
        return there.requires_grad_(requires_grad)

    def numbers(self, there):
        """Return the data of a tensor."""
        if not isinstance(there, FakeTensor):
            return there
        with unset_fake_temporarily():
            _, numbers = self._known[id(there.untyped_storage())]
            return torch.as_strided(numbers, there.shape, there.stride(), there.storage_offset())

    def call(self, graph, inputs):
        """Run a compiled graph on the data."""
        numbers = [self.numbers(tensor) for tensor in inputs]
        with unset_fake_temporarily():
            outputs = graph.current_callable(numbers)
        return tuple(self.pretend(one) if isinstance(one, torch.Tensor) else one for one in outputs)


def _run_on_numbers(graph, inputs):
    return TWINS.call(graph, inputs)


def _take_over_compilers(*, interpreted):
    torch.cuda.get_rng_state = lambda *_: torch.zeros(16, dtype=torch.uint8)
    torch.cuda.set_rng_state = lambda *_: None
    driver.set_active(_Driver())
    triton_helpers.set_driver_to_gpu = lambda: None
    config.compile_threads, config.force_disable_caches = 1, True
    config.joint_graph_constant_folding = False  # this and the next two would compute on the device
    fuse_attention._sfdp_init = pad_mm._pad_mm_init = lambda *_, **__: None
    fake_impls.op_implementations_dict[torch.ops.aten._pin_memory.default] = lambda _, __, tensor, *___: tensor.clone()
    guards = torch._C._dynamo.guards
    if interpreted:
        guards._empty_strided_cuda = _uninitialised
        CompiledFxGraph.__call__ = _run_on_numbers
    else:
        guards._empty_strided_cuda, guards._reinterpret_tensor = _fake_tensor, _reinterpreted
        CachingAutotuner._make_launcher = _note_kernel
        CachingAutotuner.run = lambda *_, **__: None


TWINS = Twins()
_take_over_compilers(interpreted=os.environ.get("TRITON_INTERPRET") == "1")
