"""Properties of the fake card, an H200, that PyTorch's Python functions report to compilers.

Inductor keeps references to these functions when it is imported, so this module must be imported first.
"""

from types import SimpleNamespace

import torch

PROPERTIES = {
    "name": "NVIDIA H200",
    "type": "cuda",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "warp_size": 32,
    "regs_per_multiprocessor": 65_536,
    "max_threads_per_multi_processor": 2048,
    "max_threads_per_block": 1024,
    "shared_memory_per_block": 49_152,
    "shared_memory_per_block_optin": 232_448,
    "shared_memory_per_multiprocessor": 233_472,
    "L2_cache_size": 50 << 20,
    "total_memory": 140 << 30,
    "gcnArchName": "",
}

# Separate functions, because compilers distinguish them.
torch.cuda.is_available = lambda: True
torch.cuda.is_initialized = lambda: True
torch.cuda.current_device = lambda: 0
torch.cuda.device_count = lambda: 1
torch.cuda.get_device_capability = lambda *_: (PROPERTIES["major"], PROPERTIES["minor"])
torch.cuda.get_device_name = lambda *_: PROPERTIES["name"]
torch.cuda.get_device_properties = lambda *_: SimpleNamespace(**PROPERTIES)
torch.cuda.set_device = lambda _: None
torch.cuda.current_stream = lambda *_: SimpleNamespace(cuda_stream=0)
torch.cuda._lazy_init = lambda: None
torch.cuda._exchange_device = lambda _: 0
torch.cuda._maybe_exchange_device = lambda _: 0
torch._C._cuda_getCurrentRawStream = lambda _: 0
