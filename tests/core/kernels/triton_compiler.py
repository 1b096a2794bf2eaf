"""Compiles Triton kernels to machine code for a GPU that is not there, and reads what they need of it."""

import contextlib
import re
import subprocess
import tempfile
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime.driver import driver

ASSEMBLERS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
BLACKWELL = 100
"""Compute capability from which on Triton brings another release of the assembler along."""
TENSOR_CORES = r"wgmma\.mma_async|mma\.sync|tcgen05\.mma"
SHARED_BYTES = {80: 166_912, 86: 101_376, 89: 101_376, 90: 232_448, 100: 232_448, 120: 101_376}
"""Shared memory that a program can have, by compute capability."""


class Utilities:
    """Properties of a device that is not there, and binaries that are not loaded."""

    @staticmethod
    def get_device_properties(_):
        return {"max_shared_mem": max(SHARED_BYTES.values())}

    @staticmethod
    def load_binary(*_):
        return None, None, 0, 0, 1024


class Driver:
    """A driver of Triton for a compute capability such as 80 or 90, which launches nothing."""

    utils = Utilities

    def __init__(self, capability):
        self._capability = capability

    def get_current_target(self):
        return GPUTarget("cuda", self._capability, 32)

    def get_current_device(self):
        return self._capability  # kernels are cached by device

    def get_current_stream(self, _):
        return 0

    def launcher_cls(self, *_):
        return lambda *_: None

    def get_device_interface(self):
        return torch.cuda

    def get_active_torch_device(self):
        return torch.device("cuda:0")


@contextlib.contextmanager
def compiling_for(capability):
    driver.set_active(Driver(capability))
    try:
        yield
    finally:
        driver.set_active(None)  # found again when it is needed


def compiled_by(capability, kernels):
    """Return the binary of each of these kernels, by name, that was called in a block of `compiling_for`."""
    found = {}
    for name, kernel in kernels.items():
        binaries, *_ = kernel.device_caches.pop(capability, [{}])
        for binary in binaries.values():
            found[name] = binary
    return found


def resources(compiled):
    """Registers per thread, bytes of spilled registers, bytes of shared memory, tensor-core instructions, and accesses
    of single 16-bit numbers in global memory.
    """
    ptx = compiled.asm["ptx"]
    target = re.search(r"^\.target (\w+)", ptx, re.MULTILINE)[1]
    with tempfile.NamedTemporaryFile("w", suffix=".ptx") as file:
        file.write(ptx)
        file.flush()
        assembler = "ptxas-blackwell" if compiled.metadata.target.arch >= BLACKWELL else "ptxas"
        command = [ASSEMBLERS / assembler, "--verbose", f"--gpu-name={target}", file.name, "--output-file=/dev/null"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {
        "registers": int(re.search(r"Used (\d+) registers", report)[1]),
        "spilled": sum(map(int, re.findall(r"(\d+) bytes spill", report))),
        "shared": compiled.metadata.shared,
        "tensor_cores": len(re.findall(TENSOR_CORES, ptx)),
        "single_numbers": len(re.findall(r"(?:ld|st)\.global\.b16", ptx)),
    }


def warp_columns(compiled):
    """For each load and store of a matrix in global memory, the neighboring columns that a warp accesses at once."""
    ttgir = compiled.asm["ttgir"]
    layout = (
        r"^(#\w+) = #ttg.blocked<\{sizePerThread = \[(\d+), (\d+)\], threadsPerWarp = \[(\d+), (\d+)\].*order = \[(\d)"
    )
    columns = {
        name: int(per_thread) * int(threads) if order == "1" else 1
        for name, _, per_thread, _, threads, order in re.findall(layout, ttgir, re.MULTILINE)
    }
    access = r"= tt\.load .*<\d+x\d+x!tt\.ptr<\w+>, (#\w+)>|tt\.store .*<\d+x\d+x!tt\.ptr<\w+>, (#\w+)>"
    return [columns[loaded or stored] for loaded, stored in re.findall(access, ttgir)]
