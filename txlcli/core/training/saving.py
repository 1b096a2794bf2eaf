"""Saves checkpoints in the background, from a copy of the tensors in host memory (snapshot).

A step waits only for the copy. There is one snapshot at a time: the next one waits until the file of this one is
written.
"""

import contextlib
import copy
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from torch import Tensor

from txlcli.core.kernels.device import FreeBytes, check_free_memory
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.system.memory import free_bytes


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
        free: FreeBytes = free_bytes,
    ) -> None:
        self._identity = identity or {}
        self._write = write
        self._free = free
        self.last_path = directory / "last.safetensors"
        """Checkpoint that a run resumes from."""
        self.best_path = directory / "best.safetensors"
        """Checkpoint with the weights of the lowest validation loss."""
        self._thread = ThreadPoolExecutor(1, "txl-writer")
        self._file = Future[None]()
        """The file that is written, or the last one."""
        self._file.set_result(None)

    def settle(self) -> None:
        """Wait until the file is written, and leave an error to the next call that raises it."""
        wait([self._file])

    def wait(self) -> None:
        """Wait until the file is written, and raise the error if it could not be."""
        self._file.result()

    def raise_error(self) -> None:
        """Raise the error of a file that could not be written, if there is one, without waiting."""
        if self._file.done():
            self.wait()

    def save(self, path: Path, tensors: Mapping[str, Tensor], state: dict[str, Any], *, copied: bool = False) -> None:
        """Write tensors, by their full names, and the present state, once the file before is written.

        `copied` is True for tensors that nothing else changes.
        """
        self.wait()
        tensors = {name: tensor.detach() for name, tensor in tensors.items()}
        if not copied:
            size = sum(tensor.nbytes for tensor in tensors.values())
            with contextlib.suppress(MemoryError):
                check_free_memory(size, checkpoint.CPU, free=self._free)
                tensors = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
                copied = True
        saved = Checkpoint(tensors, {**self._identity, **copy.deepcopy(state)})
        self._file = self._thread.submit(self._write, path, saved)
        if not copied:
            self.wait()
