"""Saves checkpoints in the background, from a copy of the tensors in host memory (snapshot).

A step waits only for the copy. There is one snapshot at a time: the next one waits until all files of this one are
written. Both files of a validation are written from the same snapshot, since no step is taken between them.
"""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from txlcli.core.kernels.device import MEMINFO, check_free_memory
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint

WriteCheckpoint = Callable[[Path, Checkpoint], None]
"""Writes one file, as `checkpoint.save` does."""


class BackgroundWriter:
    """Functions that run one after another in a thread; only a kill ends the process before them."""

    def __init__(self) -> None:
        self._thread, self._started = ThreadPoolExecutor(1, "txl-writer"), list[Future[None]]()

    def start(self, function: Callable[[], None]) -> None:
        """Call a function in the background, after those that were started before."""
        self._started.append(self._thread.submit(function))

    def settle(self) -> None:
        """Wait until all functions have ended, and leave an error to the next call that raises it."""
        wait(self._started)

    def wait(self) -> None:
        """Wait until all functions have ended, and raise the error of the first one that failed."""
        self.settle()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of a function that has failed, if there is one, without waiting."""
        ended = [function for function in self._started if function.done()]
        self._started = [function for function in self._started if function not in ended]
        for function in ended:
            function.result()


class Saver:
    """Writes the checkpoints of a training run.

    Without enough free memory for a copy, files are written from the tensors themselves, and the step waits for them.
    """

    def __init__(self, write: WriteCheckpoint = checkpoint.save, *, meminfo: Path = MEMINFO) -> None:
        self._write, self._meminfo = write, meminfo
        self.files = BackgroundWriter()
        """The files that are being written."""
        self._snapshot: dict[str, Tensor] = {}
        self._is_copy = False
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
        self.step, self._snapshot = None, {}

    def take(self, tensors: Mapping[str, Tensor], *, step: int, copied: bool = False) -> None:
        """Copy the tensors of a step, by their full names, once the files of the previous snapshot are written."""
        self.files.wait()
        self._drop()
        self.step, self._snapshot = step, {name: tensor.detach() for name, tensor in tensors.items()}
        self._is_copy = copied or self._has_room(tensors)
        if self._is_copy and not copied:
            self._snapshot = {name: tensor.to("cpu", copy=True) for name, tensor in self._snapshot.items()}

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
        if not self._is_copy:
            self.files.wait()

    def _has_room(self, tensors: Mapping[str, Tensor]) -> bool:
        """Return True if the host has memory for a copy."""
        try:
            check_free_memory(
                sum(tensor.nbytes for tensor in tensors.values()), torch.device("cpu"), meminfo=self._meminfo
            )
        except MemoryError:
            return False
        return True
