"""Counts the bytes of the tensors that exist, real ones or those without data."""

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from txlcli.core.kernels.device import unlimited_memory
from txlcli.core.kernels.private import observed_results, tensors_without_data


class LiveBytes:
    """Bytes of the tensors that exist, and the most that existed at once; sparse tensors are left out."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._storages: set[int] = set()

    def observe(self, tensor: Tensor) -> None:
        """Count the memory of a tensor, once, until it is freed."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        if id(storage) in self._storages:
            return
        self._storages.add(id(storage))
        self.now += storage.nbytes()
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._free, id(storage), storage.nbytes())

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size


@contextmanager
def counting(live: LiveBytes) -> Iterator[None]:
    """Compute on tensors without data in the block, and let `live` observe all results."""
    gc.freeze()  # garbage collection of the objects of imported packages takes longer than the count
    try:
        with unlimited_memory(), tensors_without_data(), observed_results(live.observe):
            yield
    finally:
        gc.unfreeze()
