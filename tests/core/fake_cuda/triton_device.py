"""Lets Inductor compile for the fake card, and reports each of its kernels instead of running it.

torch.compile leaves code alone while a dispatch mode is active; here it does not. Import this before the compiler.
"""

import math
import re
from types import SimpleNamespace

import torch
import torch.utils._triton
from triton.runtime.driver import driver

from tests.core.kernels.triton_compiler import Driver

H100 = SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    multi_processor_count=132,
    total_memory=80 << 30,
    warp_size=32,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=1 << 16,
    shared_memory_per_block=48 << 10,
    shared_memory_per_block_optin=227 << 10,
    L2_cache_size=50 << 20,
)
observers = []
"""Functions that are called with the name of each kernel, and the bytes that it reads and writes."""
failures = set()
"""Of "compile" and "launch", what fails of every kernel of Inductor."""
sources = {}
"""Names of all kernels of Inductor, by their source."""


def size_of(tensor):
    """Return the bytes of the different elements of a tensor: an expanded axis counts once."""
    sizes = (size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
    return math.prod(sizes) * tensor.element_size()


class FusedKernel:
    """A kernel of Inductor, which does nothing."""

    def __init__(self, name, source):
        if "compile" in failures:
            raise RuntimeError("PassManager::run failed")
        sources[source] = name
        self._name = name
        self._arguments = re.search(rf"def {name}\(([^)]*)\)", source)[1].split(", ")
        self._read_and_written = {argument for argument in self._arguments if f"tl.load({argument} " in source}
        self._read_and_written &= {argument for argument in self._arguments if f"tl.store({argument} " in source}

    def run(self, *arguments, **_):
        """Report a launch; an argument that is both read and written counts twice."""
        if "launch" in failures:
            raise RuntimeError("Triton Error [CUDA]: out of resources")
        size = 0
        for name, value in zip(self._arguments, arguments, strict=False):
            if isinstance(value, torch.Tensor):
                size += size_of(value) * (1 + (name in self._read_and_written))
        for observe in observers:
            observe(self._name, size)


class _Guard:
    """Replaces the guard of the current device."""

    def __init__(self, _):
        pass

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


torch.cuda.get_device_properties, torch.cuda.get_device_capability = lambda *_: H100, lambda *_: (9, 0)
torch.cuda.is_bf16_supported = lambda *_, **__: True
torch.utils._triton.has_triton = lambda *_: True
torch.cuda._DeviceGuard, torch.cuda.set_device = _Guard, lambda *_: None
torch._C._cuda_getCurrentRawStream = lambda _: 0
driver.set_active(Driver(90))

from torch._dynamo import convert_frame  # noqa: E402
from torch._inductor import async_compile, config  # noqa: E402

guards = torch._C._dynamo.guards
guards._empty_strided_cuda = lambda size, stride, dtype: torch.empty_strided(size, stride, dtype=dtype, device="cuda:0")
guards._reinterpret_tensor = lambda tensor, size, stride, offset=0: tensor.as_strided(
    size, stride, tensor.storage_offset() + offset
)
convert_frame.any_torch_dispatch_mode_on_stack = lambda: False
async_compile.AsyncCompile.triton = lambda _, name, source, device_str="cuda": FusedKernel(name, source)
config.joint_graph_constant_folding = False  # it computes constants on the device
config.compile_threads, config.fx_graph_cache = 1, False
