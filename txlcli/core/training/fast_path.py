"""The fast path of training steps: compiled layers and Triton's kernels, each used until it fails.

Axes: B batch, E tokens that are read again, L segment.
"""

import functools
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from txlcli.core.kernels.compilation import first_line, give_up_triton, path_in_words
from txlcli.core.kernels.device import forked_generators
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.training.exchange import Exchange
from txlcli.core.training.parallel import DataParallel
from txlcli.errors import TxlError

logger = logging.getLogger(__name__)


class FastPath:
    """Chooses when layers are compiled, and leaves out a part of the fast path that fails."""

    def __init__(self, parallel: DataParallel) -> None:
        self._parallel = parallel
        self._settings = parallel.settings
        self.compiles = self._settings.compile == "on"
        """True if compiled layers are used, once the memory is full."""
        self._is_compiled = False
        """True if compiled layers compute the micro-batch at work."""
        self._has_compiled = False
        """True if they have computed a step."""
        self._rehearsed = set[tuple[str | None, bool]]()
        """Attention kernels, and if layers were compiled, of the steps that several processes have rehearsed."""
        self.notes: list[str] = []
        """Lines for the user about paths that could not be taken."""

    @property
    def _model(self) -> LanguageModel:
        return self._parallel.model

    def layers(self, inputs: Tensor, memory: Memory) -> AbstractContextManager[None]:
        """Run the layers on a micro-batch (B, E + L) inside this block as they were compiled, or uncompiled."""
        self._is_compiled = self._should_compile(inputs, memory)
        if self._settings.compile == "on" and not self._is_compiled:
            return self._model.uncompiled()
        return nullcontext()

    def _should_compile(self, inputs: Tensor, memory: Memory) -> bool:
        """Return False for lengths that occur once: those of a growing memory, and of jittered segments."""
        settings = self._settings
        has_usual_length = inputs.shape[1] == settings.reread_len + settings.padded_segment
        return self.compiles and has_usual_length and self._model.memory_is_full(memory, settings.mem_len)

    def end_of_passes(self) -> None:
        """Note that all passes of a step have worked."""
        self._has_compiled |= self._is_compiled
        self._is_compiled = False

    def rehearse(
        self,
        exchange: Exchange,
        inputs: Tensor,
        memories: Sequence[Memory],
        gradients: Callable[[list[Memory]], object],
    ) -> None:
        """Try the first step of each path without sending anything; all processes must call this before a step.

        What fails in one of them is left out in all of them, and none waits for a process that has failed.

        Args:
            exchange: of the processes.
            inputs: of the first micro-batch.
            memories: of all micro-batches.
            gradients: computes the gradients of the step from memories that it replaces.
        """
        while True:
            is_compiled = self._should_compile(inputs, memories[0])
            path = (self._model.attention_kernels, is_compiled)
            if path in self._rehearsed or not self._can_leave_out(is_compiled=is_compiled):
                return
            self._rehearsed.add(path)
            began = time.perf_counter()
            copies = [list(memory) for memory in memories]
            with forked_generators(self._model.device):
                reason = exchange.failure_without_sending(f"step by {path}", functools.partial(gradients, copies))
            self._model.forget_gradients()
            if reason is not None:
                self._leave_out(reason, is_compiled=is_compiled)
            elif is_compiled:
                seconds = time.perf_counter() - began
                self.notes.append(f"layers compiled in {seconds:.0f} s: by one process, while the others waited for it")

    @property
    def may_step_down(self) -> bool:
        """True if a step that fails may be taken again without a part of the fast path."""
        return self._parallel.world.size == 1 and self._can_leave_out(is_compiled=self.compiles)

    def step_down(self, error: Exception) -> None:
        """Leave out a part of the fast path in which an error was raised; raise the error if it lies elsewhere.

        The gradients of the step that failed are dropped. Several processes end: the others have sent what it lacks.
        """
        can_leave_out = self._can_leave_out(is_compiled=self._is_compiled)
        is_of_kernel = not isinstance(error, torch.OutOfMemoryError | TxlError)
        if self._parallel.world.size > 1 or not (can_leave_out and is_of_kernel):
            raise error
        logger.debug("a part of the fast path failed", exc_info=error)
        self._leave_out(first_line(error), is_compiled=self._is_compiled)

    def _can_leave_out(self, *, is_compiled: bool) -> bool:
        """Return True if a part of the fast path computes a step, and may be left out."""
        return is_compiled or self._model.attention_kernels == "triton"

    def _leave_out(self, reason: str, *, is_compiled: bool) -> None:
        """Leave out compiled layers, if they were at work, else Triton's kernels, which compiled layers need.

        The gradients are dropped.
        """
        without = "compiled layers"
        if not is_compiled:
            without = "Triton's kernels and compiled layers"
            give_up_triton(self._model.device, reason)
        self.notes.append(f"training continues without {without}, which takes longer: {reason}")
        if self.compiles:
            self._parallel.model = self._model.on(compiles=False)
        self.compiles = False
        self._is_compiled = False
        self._model.forget_gradients()

    def in_words(self, *, captured: bool) -> str:
        """Return how steps have been computed up to now; see `path_in_words`."""
        compiled = self.compiles and self._has_compiled
        return path_in_words(self._model.attention_kernels, compiled=compiled, captured=captured)
