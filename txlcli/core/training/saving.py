"""Saves checkpoints in the background, from a copy of the tensors in host memory (snapshot).

A step waits only for the copy. There is one snapshot at a time: the next one waits until all files of this one are
written. Both files of a validation are written from the same snapshot, since no step is taken between them.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txlcli.core.kernels.device import MEMINFO, check_free_memory
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.system.background import BackgroundWriter
from txlcli.system.memory import is_out_of_memory

WriteCheckpoint = Callable[[Path, Checkpoint], None]
"""Writes one file, as `checkpoint.save` does."""


class Saver:
    """Writes the checkpoints of a training run.

    Without enough free memory for a copy, files are written from the tensors themselves, and the step waits for them.
    """

    def __init__(self, write: WriteCheckpoint = checkpoint.save, *, meminfo: Path = MEMINFO) -> None:
        self._write, self._meminfo = write, meminfo
        self.files = BackgroundWriter()
        """The files that are being written."""
        self._buffers: dict[str, Tensor] = {}
        self._snapshot: dict[str, Tensor] = {}
        self.step: int | None = None
        """Step of the snapshot; None if there is none."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Wait at the end of the block until all files are written, and free the memory of the snapshot."""
        try:
            yield
            self.files.wait()
        finally:
            self.files.settle()
            self._drop()

    def forget(self) -> None:
        """Free the memory of the snapshot, once its files are written."""
        self.files.wait()
        self._drop()

    def _drop(self) -> None:
        self.step, self._snapshot, self._buffers = None, {}, {}

    def take(self, tensors: Mapping[str, Tensor], *, step: int, copied: bool = False) -> None:
        """Copy the tensors of a step, by their full names, once the files of the previous snapshot are written.

        Args:
            tensors: to save.
            step: number of the step.
            copied: True if the tensors are in host memory and do not change; they are kept as they are.
        """
        self.files.wait()
        self.step, self._snapshot = step, {}
        if copied:
            self._snapshot = self._buffers = dict(tensors)
            return
        try:
            self._allocate(tensors)
        except MemoryError:
            self._buffers = {}
            self._snapshot = {name: tensor.detach() for name, tensor in tensors.items()}
            return
        for name, tensor in tensors.items():
            self._snapshot[name] = self._buffers[name].copy_(tensor.detach())

    def write_all(self, path: Path, state: dict[str, Any]) -> None:
        """Write all tensors of the snapshot, and the present state, to a file."""
        self._start(path, self._snapshot, state)

    def write_weights(self, path: Path, state: dict[str, Any]) -> None:
        """Write the weights to evaluate, the average if there is one, and the present state to a file."""
        snapshot = Checkpoint(self._snapshot)
        weights = snapshot.group(snapshot.weights_to_evaluate)
        self._start(path, checkpoint.grouped("model", weights), state)

    def _start(self, path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        saved = Checkpoint(dict(tensors), copy.deepcopy(state))
        self.files.start(lambda: self._write(path, saved))
        if not self._buffers:
            self.files.wait()

    def _allocate(self, tensors: Mapping[str, Tensor]) -> None:
        """Make a buffer in host memory for each tensor, or raise a MemoryError; buffers that fit are kept."""
        new = [name for name, tensor in tensors.items() if not _fits(self._buffers.get(name), tensor)]
        for name in new:
            self._buffers.pop(name, None)
        check_free_memory(sum(tensors[name].nbytes for name in new), torch.device("cpu"), meminfo=self._meminfo)
        for name in new:
            try:
                self._buffers[name] = torch.empty(tensors[name].shape, dtype=tensors[name].dtype)
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                raise MemoryError(str(error)) from error


def _fits(buffer: Tensor | None, tensor: Tensor) -> bool:
    return buffer is not None and buffer.shape == tensor.shape and buffer.dtype == tensor.dtype
