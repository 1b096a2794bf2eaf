"""One training step: forward and backward passes, norm, clipping, update, in this order.

Axes: B batch, E tokens that are read again, L segment, M memory, d model width, N layers.
"""

import contextlib
import functools
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.core.kernels.compilation import first_line, give_up_triton, path_in_words
from txlcli.core.kernels.device import forked_generators
from txlcli.core.kernels.modes import autocast, float32_products
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import Objective
from txlcli.core.training.exchange import Exchange
from txlcli.core.training.flat import FlatMatrices, StepWeights
from txlcli.core.training.optimizer import set_rates
from txlcli.core.training.parallel import DataParallel
from txlcli.errors import TxlError

logger = logging.getLogger(__name__)
MIN_LOSS_SCALE = 1.0
"""Smallest scale of the loss in fp16. The scale begins at 65,536, and each skipped step halves it."""


class Batch(NamedTuple):
    """The segments of one micro-batch in one step."""

    inputs: Tensor
    """(B, E + L)."""
    targets: Tensor
    """(B, L)."""
    goal: Objective


class Step:
    """Takes training steps: `gradients`, `norm` and `update`, one after another.

    The methods after these choose when layers are compiled, and leave out a part of the fast path that fails.

    Args:
        parallel: the model and its optimizer.
        copies: dtype of copies of the matrices, which passes read; None if they read the matrices themselves.
    """

    def __init__(self, parallel: DataParallel, copies: torch.dtype | None = None) -> None:
        self.parallel = parallel
        self.settings = parallel.settings
        self.optimizer = parallel.optimizer
        self.weights = _weights(parallel, copies)
        self.scaler = torch.amp.GradScaler(self.model.device.type, enabled=self.settings.precision == "fp16")
        """Scales the loss in fp16, and skips steps with non-finite gradients."""
        self.grad_norm = torch.zeros((), device=self.model.device)
        """Norm of all gradients of the step at work (0-d), before they are clipped."""
        self.compiles = self.settings.compile == "on"
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
    def model(self) -> LanguageModel:
        """The view of the model that computes."""
        return self.parallel.model

    def gradients(self, batches: Sequence[Batch], memories: list[Memory]) -> Tensor:
        """Add the gradients of all lanes, those of this process one micro-batch after another.

        Args:
            batches: the micro-batches.
            memories: the memory of each micro-batch before the segment; replaced in place by the memory after it.
        Returns:
            The mean loss and what the objective adds to it, (2,).
        """
        losses = []
        for number, (batch, memory) in enumerate(zip(batches, memories, strict=True)):
            with self.weights.in_use(is_first=number == 0, is_last=number == len(batches) - 1):
                self._is_compiled = self._should_compile(batch, memory)
                with autocast(self.model.device, self.settings.precision), self._layers():
                    compute = self.parallel.with_all_weights(self.model.objective)
                    loss, reported, memory[:] = compute(batch.inputs, batch.targets, memory, batch.goal)
                share = len(batch.targets) / self.settings.batch_size
                with float32_products(self.model.device, self.settings.precision):
                    # No reference to the old memory is left, so this frees it layer by layer.
                    self.scaler.scale(loss).backward(torch.full_like(loss, share * self.parallel.gradient_factor))
                of_batch = torch.stack([reported, loss - reported]).detach()
                losses.append(of_batch * share if share < 1 else of_batch)
        self._has_compiled |= self._is_compiled
        self._is_compiled = False
        total = sum(losses[1:], losses[0])
        self.weights.add_up(total)
        return total

    def norm(self) -> Tensor:
        """Return the total norm of all gradients (0-d), for `update`."""
        self.scaler.unscale_(self.optimizer)
        self.grad_norm = self.weights.total_norm()
        return self.grad_norm

    def update(self, rate_of: Callable[[float], float]) -> None:
        """Clip the gradients, update the weights, and drop the gradients.

        `rate_of` returns the learning rate of a parameter group, given its factor.
        """
        set_rates(self.optimizer, rate_of)
        self._clip_and_update()
        self.model.forget_gradients()

    def _clip_and_update(self) -> None:
        """Clip the gradients by their norm, and step the optimizer."""
        if self.weights.update_large(self.grad_norm):
            return
        self.weights.clip(self.grad_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.weights.refresh()

    @property
    def is_stuck(self) -> bool:
        """True if gradients overflow although the loss is not scaled up any more; reading it waits for the device."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < MIN_LOSS_SCALE

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Return the mean loss (0-d) of inputs (B, E + L), targets (B, L) with the current weights, without dropout.

        Documents do not begin anew: this tells if the loss is finite. All processes must call this with as many tokens.
        """
        self.parallel.receive_updates()
        model = self.model.eval()
        with autocast(model.device, self.settings.precision), model.uncompiled():
            read = self.parallel.with_all_weights(model)
            hidden, _ = read(inputs, memory, mem_len=self.settings.mem_len)
            return model.losses(hidden[:, -targets.shape[1] :], targets).mean()

    def memory_is_full(self, memory: Memory) -> bool:
        """Return True if the memory of a model with attention has its full length."""
        return self.model.memory_is_full(memory, self.settings.mem_len)

    def _layers(self) -> contextlib.AbstractContextManager[None]:
        """Run the layers of the micro-batch at work as they were compiled, or uncompiled."""
        if self.settings.compile == "on" and not self._is_compiled:
            return self.model.uncompiled()
        return contextlib.nullcontext()

    def _should_compile(self, batch: Batch, memory: Memory) -> bool:
        """Return False for lengths that occur once: those of a growing memory, and of jittered segments."""
        settings = self.settings
        has_usual_length = batch.inputs.shape[1] == settings.reread_len + settings.padded_segment
        return self.compiles and has_usual_length and self.memory_is_full(memory)

    def rehearse(self, batches: Sequence[Batch], memories: list[Memory]) -> None:
        """Try the first step of each path without sending anything; several processes must call this before a step.

        What fails in one of them is left out in all of them, and none waits for a process that has failed.
        """
        exchange = self.weights
        if not isinstance(exchange, Exchange):
            return
        while True:
            is_compiled = self._should_compile(batches[0], memories[0])
            path = (self.model.attention_kernels, is_compiled)
            if path in self._rehearsed or not self._can_leave_out(is_compiled=is_compiled):
                return
            self._rehearsed.add(path)
            began = time.perf_counter()
            copies = [list(memory) for memory in memories]
            compute = functools.partial(Step.gradients, self, batches, copies)  # not by a graph
            with forked_generators(self.model.device):
                reason = exchange.rehearse(f"step by {path}", compute)
            self.model.forget_gradients()
            if reason is not None:
                self._leave_out(reason, is_compiled=is_compiled)
            elif is_compiled:
                seconds = time.perf_counter() - began
                self.notes.append(f"layers compiled in {seconds:.0f} s: by one process, while the others waited for it")

    @property
    def may_step_down(self) -> bool:
        """True if a step that fails may be taken again without a part of the fast path."""
        return self.parallel.world.size == 1 and self._can_leave_out(is_compiled=self.compiles)

    def step_down(self, error: Exception) -> None:
        """Leave out a part of the fast path in which an error was raised; raise the error if it lies elsewhere.

        The gradients of the step that failed are dropped. Several processes end: the others have sent what it lacks.
        """
        can_leave_out = self._can_leave_out(is_compiled=self._is_compiled)
        is_of_kernel = not isinstance(error, torch.OutOfMemoryError | TxlError)
        if self.parallel.world.size > 1 or not (can_leave_out and is_of_kernel):
            raise error
        logger.debug("a part of the fast path failed", exc_info=error)
        self._leave_out(first_line(error), is_compiled=self._is_compiled)

    def _can_leave_out(self, *, is_compiled: bool) -> bool:
        """Return True if a part of the fast path computes a step, and may be left out."""
        return is_compiled or self.model.attention_kernels == "triton"

    def _leave_out(self, reason: str, *, is_compiled: bool) -> None:
        """Leave out compiled layers, if they were at work, else Triton's kernels, which compiled layers need.

        The gradients are dropped.
        """
        without = "compiled layers"
        if not is_compiled:
            without = "Triton's kernels and compiled layers"
            give_up_triton(self.model.device, reason)
        self.notes.append(f"training continues without {without}, which takes longer: {reason}")
        if self.compiles:
            self.parallel.model = self.model.on(compiles=False)
        self.compiles = False
        self._is_compiled = False
        self.model.forget_gradients()

    @property
    def is_captured(self) -> bool:
        """True if steps are replayed by a CUDA graph."""
        return False

    @property
    def path(self) -> str:
        """How steps have been computed up to now; see `path_in_words`."""
        compiled = self.compiles and self._has_compiled
        return path_in_words(self.model.attention_kernels, compiled=compiled, captured=self.is_captured)


def _weights(parallel: DataParallel, copies: torch.dtype | None) -> StepWeights:
    """Return what passes read: the parameters, or copies of the matrices in another dtype."""
    if parallel.world.size > 1 and parallel.settings.parallel != "fsdp":
        return Exchange(parallel, copies)
    return StepWeights(parallel) if copies is None else FlatMatrices(parallel, copies)
