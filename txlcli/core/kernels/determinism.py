"""Deterministic kernels on CUDA: the same inputs give the same bits, run after run. On a CPU they always do."""

import contextlib
import os
from collections.abc import Iterator, MutableMapping
from typing import Any

import torch

from txlcli.errors import UsageError

WORKSPACES = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACE = ":4096:8"
"""Value of the environment variable with which cuBLAS adds in the same order in every run; it reads the variable before
the first product of a process."""
WITHOUT = "`overrides` train.deterministic=false"
NO_KERNEL = "does not have a deterministic implementation"
"""Part of PyTorch's error message."""


def check_deterministic(device: torch.device, *, processes: int) -> None:
    """Raise a UsageError if the numbers of a training run could differ when it is repeated."""
    if device.type == "cuda" and processes > 1:
        raise UsageError(
            "train.deterministic is for one GPU, since NCCL chooses the order in which several add their gradients; "
            f"leave out `processes`, or {WITHOUT}"
        )


@contextlib.contextmanager
def deterministic_kernels(
    device: torch.device, *, enabled: bool, environ: MutableMapping[str, str] = os.environ
) -> Iterator[None]:
    """Use only deterministic kernels of CUDA inside the block; PyTorch's settings are restored after it."""
    if not enabled or device.type != "cuda":
        yield
        return
    environ.setdefault(WORKSPACES, FIXED_WORKSPACE)
    cudnn: Any = torch.backends.cudnn
    memory: Any = torch.utils.deterministic
    was_enabled = torch.are_deterministic_algorithms_enabled()
    only_warned = torch.is_deterministic_algorithms_warn_only_enabled()
    was_deterministic = cudnn.deterministic
    was_benchmark = cudnn.benchmark
    filled_before = memory.fill_uninitialized_memory
    torch.use_deterministic_algorithms(True)
    cudnn.deterministic = True
    cudnn.benchmark = False
    memory.fill_uninitialized_memory = False  # every element is written before it is read
    try:
        yield
    except RuntimeError as error:
        if NO_KERNEL not in str(error):
            raise
        operation = str(error).split(NO_KERNEL)[0]
        raise UsageError(f"train.deterministic: {operation}{NO_KERNEL}; {WITHOUT}") from error
    finally:
        torch.use_deterministic_algorithms(was_enabled, warn_only=only_warned)
        cudnn.deterministic = was_deterministic
        cudnn.benchmark = was_benchmark
        memory.fill_uninitialized_memory = filled_before
