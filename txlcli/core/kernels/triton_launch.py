"""Sizes of the tiles of Triton kernels, by dtype and head width."""

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

import torch

from txlcli.errors import UsageError

MAX_WIDTH = 128
"""Largest head width; wider tiles do not fit into registers."""
MIN_WIDTH = 16
"""Smallest width of a tile: tensor cores multiply no narrower ones."""
PROGRAMS_PER_PROCESSOR = 2
"""Programs that a processor of the GPU should find, before the keys of a query are divided among several."""
MIN_BLOCKS_OF_KEYS = 4
"""Tiles of keys that a split has at least."""
MAX_SPLITS = 32

MAX_SEQUENCES = 65_535
"""Largest number of lanes times heads: CUDA's limit for the second dimension of a grid."""

Kernel = Literal["forward", "keys", "queries"]
"""The forward kernel, and the backward kernels of keys and of queries."""


@dataclass(frozen=True)
class Launch:
    """Tile of a kernel and its resources."""

    queries: int
    """Queries of a tile, at least 16."""
    keys: int
    """Keys of a tile, at least 16."""
    warps: int
    """Groups of 32 threads per program."""
    stages: int
    """Tiles of keys that are loaded ahead."""
    precision: str = "ieee"
    """Products of float32: "ieee", or "tf32" if PyTorch's products use it."""

    @staticmethod
    def padded(width: int) -> int:
        """Return the width of a tile for a head width."""
        return max(MIN_WIDTH, 1 << (width - 1).bit_length())

    def arguments(self, width: int) -> dict[str, Any]:
        """Return the arguments of a kernel for a head width."""
        tile = {"WIDTH": width, "PADDED": self.padded(width), "QUERIES": self.queries, "KEYS": self.keys}
        return {**tile, "PRECISION": self.precision, "num_warps": self.warps, "num_stages": self.stages}


TILES: dict[tuple[Kernel, bool, bool], Launch] = {  # kernel, 16 bits, head width over 64
    ("forward", True, False): Launch(64, 64, 8, 3),
    ("forward", True, True): Launch(64, 64, 8, 2),
    ("forward", False, False): Launch(32, 16, 4, 2),
    ("forward", False, True): Launch(16, 32, 8, 2),
    ("keys", True, False): Launch(32, 32, 4, 2),
    ("keys", True, True): Launch(32, 64, 8, 1),
    ("keys", False, False): Launch(16, 16, 4, 1),
    ("keys", False, True): Launch(16, 32, 8, 1),
    ("queries", True, False): Launch(64, 32, 8, 2),
    ("queries", True, True): Launch(64, 32, 8, 2),
    ("queries", False, False): Launch(16, 32, 4, 1),
    ("queries", False, True): Launch(16, 32, 8, 1),
}
"""The largest of the tiles tried that need no more registers and shared memory than compute capability 8.0 and 9.0
have, also with dropout. No GPU has timed them yet."""


def launch_of(kernel: Kernel, dtype: torch.dtype, width: int) -> Launch:
    """Return the tile of a kernel for a dtype and head width."""
    launch = TILES[kernel, dtype.itemsize == 2, width > 64]
    tf32 = dtype == torch.float32 and uses_tf32()
    return dataclasses.replace(launch, precision="tf32") if tf32 else launch


def check_sequences(query: torch.Tensor) -> None:
    """Raise a UsageError if the kernels of attention do not support as many queries (B, H, L, D)."""
    lanes, heads, *_ = query.shape
    if lanes * heads > MAX_SEQUENCES:
        raise UsageError(
            f"attention triton takes at most {MAX_SEQUENCES:,} lanes times heads at once, not {lanes} x {heads}; take "
            "auto, or smaller batches"
        )


def uses_tf32() -> bool:
    """Return True if PyTorch's products of float32 use TF32 on CUDA."""
    return torch.backends.cuda.matmul.fp32_precision == "tf32"


def splits_of(programs: int, key_len: int, launch: Launch, device: torch.device) -> int:
    """Return the number of programs that divide the keys of a query, so that all processors of a GPU have work.

    Args:
        programs: without a division.
        key_len: K.
        launch: of the forward kernel.
        device: of the tensors; on a CPU (Triton's interpreter) nothing is divided.
    """
    if device.type != "cuda":
        return 1
    wanted = PROGRAMS_PER_PROCESSOR * torch.cuda.get_device_properties(device).multi_processor_count
    most = max(1, key_len // (MIN_BLOCKS_OF_KEYS * launch.keys))
    return max(1, min(-(-wanted // programs), most, MAX_SPLITS))
