"""One training step: forward and backward pass (eager, compiled or as a CUDA graph), gradient clipping, optimizer.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import functools
from collections.abc import Callable

import torch
from torch import Tensor

from txlcli.core.kernels.cuda_graph import CaptureGraph, capture
from txlcli.core.kernels.device import autocast, float32_products
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.training.parallel import DataParallel

MIN_LOSS_SCALE = 1.0
"""Smallest scale of the loss in fp16. The scale begins at 65,536, and each skipped step halves it."""

capture_step: CaptureGraph = functools.partial(
    capture, instead="resume with `overrides` train.cuda_graph=false, or train without it"
)
"""Captures the forward and backward pass of a step."""


class TrainStep:
    """Forward and backward passes of micro-batches, gradient clipping, loss scaling for fp16, and the optimizer."""

    def __init__(self, parallel: DataParallel, *, capture_graph: CaptureGraph = capture_step) -> None:
        self._model, self._settings, self._parallel = parallel.model, parallel.settings, parallel
        self.optimizer = parallel.make_optimizer()
        is_fp16 = parallel.settings.precision == "fp16"
        self.scaler = torch.amp.GradScaler(parallel.model.device.type, enabled=is_fp16)
        without_schedule = functools.partial(self._run, progress=0.0)  # a CUDA graph has no auxiliary losses
        self._captured = CapturedForwardBackward(without_schedule, parallel.model, capture_graph)

    @property
    def skips_steps(self) -> bool:
        """True if steps with non-finite gradients are skipped (fp16 loss scaling)."""
        return self.scaler.is_enabled()

    @property
    def is_stuck(self) -> bool:
        """True if gradients overflow although the loss is not scaled up any more; reading it waits for the device."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < MIN_LOSS_SCALE

    def clip(self) -> Tensor:
        """Scale all gradients so that their total norm is at most train.clip; return the norm before (0-d)."""
        self.scaler.unscale_(self.optimizer)
        parameters = list(self._model.parameters())
        norm = self._parallel.total_norm([parameter.grad for parameter in parameters if parameter.grad is not None])
        if self._settings.clip is not None:
            torch.nn.utils.clip_grads_with_norm_(parameters, self._settings.clip, norm)
        return norm

    def step(self, lr: float) -> None:
        """Update the weights with the scheduled learning rate `lr`, and drop the gradients."""
        for group in self.optimizer.param_groups:
            group["lr"] = lr * group["lr_factor"]
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self._model.forget_gradients()

    def forward_backward(self, inputs: Tensor, targets: Tensor, memory: Memory, *, progress: float) -> Tensor:
        """Add the gradients of a micro-batch and return its mean loss (0-d).

        Args:
            inputs: (B, L).
            targets: (B, L).
            memory: the memory before the segment; replaced in place by the memory after it.
            progress: fraction of the training steps that are done; auxiliary losses depend on it.
        """
        if self._settings.cuda_graph and inputs.shape[1] == self._settings.seg_len and not self._grows(memory):
            return self._captured(inputs, targets, memory)  # almost all steps
        return self._run(inputs, targets, memory, progress=progress)

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Return the mean loss (0-d) of inputs and targets (B, L) with the current weights; change nothing.

        All processes must call this with as many tokens.
        """
        model, settings = self._model, self._settings
        was_training = model.training
        model.eval()
        try:
            with autocast(model.device, settings.precision), model.uncompiled():
                hidden, _ = self._parallel.read(inputs, memory, mem_len=settings.mem_len)
                return model.losses(hidden, targets).mean()
        finally:
            model.train(was_training)

    def _run(self, inputs: Tensor, targets: Tensor, memory: Memory, *, progress: float) -> Tensor:
        settings = self._settings
        with autocast(self._model.device, settings.precision), self._eager_while_memory_grows(memory):
            objective, loss, memory[:] = self._parallel.objective(inputs, targets, memory, progress=progress)
        fraction = len(inputs) / settings.batch_size
        # No other reference to the old memory is left, so the backward pass frees it layer by layer.
        with float32_products(self._model.device, settings.precision):
            self.scaler.scale(objective * (fraction * self._parallel.world.size)).backward()
        return loss.detach()

    def _eager_while_memory_grows(self, memory: Memory) -> contextlib.AbstractContextManager[object]:
        """Switch compiled layers off while memory has another length at each step."""
        if self._settings.compile and self._grows(memory):
            return self._model.uncompiled()
        return contextlib.nullcontext()

    def _grows(self, memory: Memory) -> bool:
        """Return True if the memory of a model with attention is not full yet."""
        return not self._model.memory_is_full(memory, self._settings.mem_len)


class CapturedForwardBackward:
    """A forward and backward pass that is captured as a CUDA graph at the first call and replayed afterwards.

    For models whose kernels take less time than starting them. Every step with a whole segment and a full memory runs
    the same kernels. Tokens and memory are copied to the tensors that the graph reads; it writes gradients, loss and
    the new memory to fixed tensors. Optimizer, clipping and averages stay outside, since their numbers change from step
    to step.

    Args:
        run: adds the gradients of inputs (B, L) and targets (B, L), replaces the memory and returns the loss. It must
            not wait for the device, and must not read numbers that change from step to step or memory that may be
            freed elsewhere.
        model: its gradients are written.
        capture_graph: makes the CUDA graph.
    """

    def __init__(
        self, run: Callable[[Tensor, Tensor, Memory], Tensor], model: LanguageModel, capture_graph: CaptureGraph
    ) -> None:
        self._run, self._model, self._capture_graph = run, model, capture_graph
        self._replay: Callable[[], Tensor] | None = None

    def __call__(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Do what `run` does. All shapes must be those of the first call; the next call overwrites the new memory."""
        if self._replay is None:
            self._replay = self._capture(inputs, targets, memory)
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        for own, given in zip(self._memory, memory, strict=True):
            if own is not given:
                own.copy_(given)
        loss = self._replay()
        for parameter, gradient in self._gradients:
            if parameter.grad is None:  # without a graph, `run` has made a new gradient
                parameter.grad = gradient
        memory[:] = self._memory
        return loss.clone()

    def _capture(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Callable[[], Tensor]:
        self._inputs, self._targets = inputs.clone(), targets.clone()
        self._memory = [tensor.clone() for tensor in memory]
        with torch.random.fork_rng([inputs.device] if inputs.device.type == "cuda" else []):
            replay = self._capture_graph(self._run_on_fixed_tensors, inputs.device)
        self._gradients = [(parameter, parameter.grad) for parameter in self._model.parameters()]
        return replay

    def _run_on_fixed_tensors(self) -> Tensor:
        self._model.forget_gradients()  # the backward pass then writes gradients instead of adding to them
        memory = list(self._memory)
        loss = self._run(self._inputs, self._targets, memory)
        for own, new in zip(self._memory, memory, strict=True):
            own.copy_(new)
        return loss
