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

from torch import Tensor

from txlcli.core.kernels.device import MEMINFO, check_free_memory
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint


class Saver:
    """Writes the checkpoints of a training run, one after another in a thread; only a kill ends the process before.

    Without enough free memory for a copy, files are written from the tensors themselves, and the step waits for them.
    The `identity` is part of the state in every file.
    """

    def __init__(
        self,
        directory: Path = Path(),
        identity: Mapping[str, Any] | None = None,
        *,
        write: Callable[[Path, Checkpoint], None] = checkpoint.save,
        meminfo: Path = MEMINFO,
    ) -> None:
        self._identity, self._write, self._meminfo = identity or {}, write, meminfo
        self.last_path = directory / "last.safetensors"
        """Checkpoint that a run resumes from."""
        self.best_path = directory / "best.safetensors"
        """Checkpoint with the weights of the lowest validation loss."""
        self._thread, self._files = ThreadPoolExecutor(1, "txl-writer"), list[Future[None]]()
        self._snapshot: dict[str, Tensor] = {}
        self._is_copy = False
        self.step: int | None = None
        """Step of the snapshot; None if there is none."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Wait at the end of the block until all files are written, and free the memory of the snapshot."""
        try:
            yield
            self.wait()
        finally:
            self.settle()
            self.step, self._snapshot = None, {}

    def settle(self) -> None:
        """Wait until all files are written, and leave an error to the next call that raises it."""
        wait(self._files)

    def wait(self) -> None:
        """Wait until all files are written, and raise the error of the first one that failed."""
        self.settle()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of a file that could not be written, if there is one, without waiting."""
        while self._files and self._files[0].done():
            self._files.pop(0).result()

    def forget(self) -> None:
        """Free the memory of the snapshot, once its files are written."""
        self.wait()
        self.step, self._snapshot = None, {}

    def take(self, tensors: Mapping[str, Tensor], *, step: int, copied: bool = False) -> None:
        """Copy the tensors of a step, by their full names, once the files of the previous snapshot are written."""
        self.forget()
        self.step, self._snapshot = step, {name: tensor.detach() for name, tensor in tensors.items()}
        self._is_copy = True
        if not copied:
            try:
                size = sum(tensor.nbytes for tensor in self._snapshot.values())
                check_free_memory(size, checkpoint.CPU, meminfo=self._meminfo)
                self._snapshot = {name: tensor.to("cpu", copy=True) for name, tensor in self._snapshot.items()}
            except MemoryError:
                self._is_copy = False

    def write_last(self, state: dict[str, Any]) -> None:
        """Write all tensors of the snapshot, and the present state."""
        self._start(self.last_path, self._snapshot, state)

    def write_weights(self, path: Path, state: dict[str, Any]) -> None:
        """Write the weights to evaluate, the average if there is one, and the present state."""
        snapshot = Checkpoint(self._snapshot)
        weights = snapshot.group(snapshot.weights_to_evaluate)
        self._start(path, checkpoint.grouped("model", weights), state)

    def _start(self, path: Path, tensors: dict[str, Tensor], state: dict[str, Any]) -> None:
        saved = Checkpoint(dict(tensors), {**self._identity, **copy.deepcopy(state)})
        self._files.append(self._thread.submit(self._write, path, saved))
        if not self._is_copy:
            self.wait()
