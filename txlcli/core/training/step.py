"""One training step: forward and backward passes, gradient clipping, optimizer; on CUDA as two CUDA graphs.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import functools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txlcli.core.kernels.cuda_graph import CaptureGraph, Result, graphs_of_one_pool
from txlcli.core.kernels.device import generator_state, product_dtype, send, set_generator_state
from txlcli.core.kernels.modes import autocast, float32_products
from txlcli.core.kernels.private import foreach
from txlcli.core.model.base import Memory
from txlcli.core.model.losses import Objective, counted_positions
from txlcli.core.training.flat import FlatMatrices
from txlcli.core.training.optimizer import OPTIMIZERS
from txlcli.core.training.parallel import DataParallel
from txlcli.errors import UsageError

MIN_LOSS_SCALE = 1.0
"""Smallest scale of the loss in fp16. The scale begins at 65,536, and each skipped step halves it."""


class EagerStep:
    """Forward and backward passes of micro-batches, gradient clipping, loss scaling for fp16, and the optimizer."""

    def __init__(self, parallel: DataParallel) -> None:
        self._model, self._settings, self._parallel = parallel.model, parallel.settings, parallel
        self.optimizer = parallel.optimizer
        is_fp16 = parallel.settings.precision == "fp16"
        self.scaler = torch.amp.GradScaler(parallel.model.device.type, enabled=is_fp16)
        """Scales the loss in fp16, and skips steps with non-finite gradients."""
        self.compiles = parallel.settings.compile == "on"
        """True if compiled layers are used, once the memory is full."""
        self.notes: list[str] = []
        """Lines for the user about paths that could not be taken."""
        self.progress = 0.0
        """Fraction of the training steps that are done; auxiliary losses depend on it."""
        self._padded_seg_len: Tensor | None = None
        """Number of targets that are not padding (0-d), if the segment at work has padding."""

    @property
    def is_stuck(self) -> bool:
        """True if gradients overflow although the loss is not scaled up any more; reading it waits for the device."""
        return self.scaler.is_enabled() and self.scaler.get_scale() < MIN_LOSS_SCALE

    def forward_backward(self, inputs: Tensor, targets: Tensor, memories: list[Memory]) -> Tensor:
        """Add the gradients of the lanes of this process, one micro-batch after another.

        Args:
            inputs: (B, E + L).
            targets: (B, L).
            memories: the memory of each micro-batch before the segment; replaced in place by the memory after it.
        Returns:
            The mean loss of these lanes and what the objective adds to it, (2,), times their share of the batch.
        """
        losses = list[Tensor]()
        sizes = [len(memory[0]) for memory in memories]
        for number, part in enumerate(zip(inputs.split(sizes), targets.split(sizes), memories, strict=True)):
            # The gradients of all processes are averaged once per step.
            with contextlib.nullcontext() if number == len(sizes) - 1 else self._parallel.no_sync():
                losses.append(self._run(number, *part))
        return sum(losses[1:], losses[0])

    def norm(self) -> Tensor:
        """Return the total norm of all gradients (0-d), for `step`."""
        self.scaler.unscale_(self.optimizer)
        self._norm = self._total_norm()
        return self._norm

    def _total_norm(self) -> Tensor:
        gradients = (parameter.grad for parameter in self._model.parameters())
        return self._parallel.total_norm([gradient for gradient in gradients if gradient is not None])

    def step(self, lr: float) -> None:
        """Clip the gradients, update the weights with the scheduled learning rate `lr`, and drop the gradients."""
        for group in self.optimizer.param_groups:
            of_group = lr * group["lr_factor"]
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(of_group)
            else:
                group["lr"] = of_group
        self._update()
        self._model.forget_gradients()

    @torch.no_grad()
    def loss(self, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Return the mean loss (0-d) of inputs (B, E + L), targets (B, L) with the current weights, without dropout.

        All processes must call this with as many tokens.
        """
        model, settings = self._model.eval(), self._settings
        with autocast(model.device, settings.precision), model.uncompiled():
            hidden, _ = self._parallel.call(lambda: model(inputs, memory, mem_len=settings.mem_len))
            return model.losses(hidden[:, -targets.shape[1] :], targets).mean()

    def _update(self) -> None:
        """Clip the gradients by their norm, and step the optimizer."""
        if self._settings.clip is not None:
            self._clip(self._settings.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()

    def _clip(self, max_norm: float) -> None:
        nn.utils.clip_grads_with_norm_(self._model.parameters(), max_norm, self._norm)

    def _run(self, number: int, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        """Add the gradients of micro-batch `number`; see `forward_backward` for the result."""
        settings, share = self._settings, len(inputs) / self._settings.batch_size
        goal = Objective(
            mem_len=settings.mem_len,
            part=settings.loss_part,
            progress=self.progress,
            seg_len=self._padded_seg_len,
            reread_len=settings.reread_len,
            activation_penalty=settings.activation_penalty,
            slowness_penalty=settings.slowness_penalty,
        )
        # Each length of a growing memory occurs once, and jittered segments have many: nothing is compiled for them.
        is_usual = self._is_full(memory) and inputs.shape[1] == settings.reread_len + settings.longest_segment
        is_eager = settings.compile == "on" and not (self.compiles and is_usual)
        with (
            autocast(self._model.device, settings.precision),
            self._model.uncompiled() if is_eager else contextlib.nullcontext(),
        ):
            objective, loss, memory[:] = self._parallel.call(
                lambda: self._model.objective(inputs, targets, memory, goal)
            )
        # No other reference to the old memory is left, so the backward pass frees it layer by layer.
        with float32_products(self._model.device, settings.precision):
            self.scaler.scale(objective).backward(torch.full_like(objective, share * self._parallel.world.size))
        losses = torch.stack([loss, objective - loss]).detach()
        return losses * share if share < 1 else losses

    def _is_full(self, memory: Memory) -> bool:
        """Return True if the memory of a model with attention has its full length."""
        return self._model.memory_is_full(memory, self._settings.mem_len)


class CapturedStep(EagerStep):
    """A step that is captured as two CUDA graphs and replayed: gradients with their norm, and the update.

    Every step with a whole segment and full memories launches the same kernels on the same memory; other steps run
    eagerly. Jittered segments are padded to the longest length. Tokens, memories and learning rates are copied to the
    tensors that the graphs read. What cannot be captured runs eagerly, and `notes` say why.

    An adaptive softmax has a fixed number of rows for each tail band, given its share of the tokens of the text in
    `tail_shares`; a batch with more targets in one runs eagerly.
    """

    def __init__(self, parallel: DataParallel, capture_graph: CaptureGraph, tail_shares: Sequence[float] = ()) -> None:
        super().__init__(parallel)
        self._tail_shares, self._rows = tail_shares, list[Tensor]()
        self._capture_graph, self._is_replayed, self._has_updated = capture_graph, False, False
        self._replay: Callable[[], tuple[Tensor, Tensor]] | None = None
        self._replay_update: Callable[[], None] | None = None
        self._captures = True
        self._gradients = list[tuple[nn.Parameter, Tensor | None]]()
        self._seg_len = torch.zeros((), dtype=torch.int64, device=self._model.device)
        dtype = product_dtype(self._settings.precision, self._model.dtype)
        self._matrices = FlatMatrices(self._model, dtype) if dtype != self._model.dtype else None
        # The pass that clips the gradients of matrices casts them, too, unless they are added up or unscaled before.
        is_simple = self._settings.accumulate == 1 and not self.scaler.is_enabled()
        self._unclipped = self._matrices if self._settings.clip is not None and is_simple else None
        # Registered optimizers do not promise that their steps can be captured; the scaler of fp16 may wait.
        self._captures_update = OPTIMIZERS[self._settings.optimizer].capturable and not self.scaler.is_enabled()
        for group in self.optimizer.param_groups if self._captures_update else ():
            group["lr"] = torch.zeros((), device=self._model.device)

    def forward_backward(self, inputs: Tensor, targets: Tensor, memories: list[Memory]) -> Tensor:
        settings, length = self._settings, targets.shape[1]
        is_whole = inputs.shape[1] == settings.reread_len + length and all(map(self._is_full, memories))
        if settings.seg_len_jitter:
            self._seg_len.fill_(length)
        elif length != settings.seg_len:
            is_whole = False
        rows = self._rows_of_tails(targets, memories) if is_whole and self._captures else None
        if rows is not None and self._replay is None:
            self._capture(inputs, targets, memories, rows)
        self._is_replayed = rows is not None and self._replay is not None
        if rows is None or self._replay is None:
            return self._without_graph(inputs, targets, memories)
        for own_tokens, tokens in zip(self._tokens, (inputs, targets, *rows), strict=True):
            # Behind a jittered segment the tokens of an earlier one remain: padding, whatever it holds, has no weight.
            own_tokens[..., : tokens.shape[-1]].copy_(send(tokens, inputs.device))
        for memory, own in zip(memories, self._memories, strict=True):
            if memory[0] is not own[0]:
                foreach.copy_(own, memory)
            memory[:] = own
        losses, self._norm = self._replay()
        for parameter, gradient in self._gradients:
            if parameter.grad is None:  # without a graph, the backward pass has made a new gradient
                parameter.grad = gradient
        return losses.clone()

    def _rows_of_tails(self, targets: Tensor, memories: list[Memory]) -> list[Tensor] | None:
        """Return `AdaptiveSoftmax.tail_rows` of all micro-batches; None if a tail has more targets than rows."""
        if not self._tail_shares:
            return []
        part = "full" if self._settings.seg_len_jitter else self._settings.loss_part  # else weights leave out the rest
        targets = F.pad(targets, self._padding(targets))
        counted = targets[:, counted_positions(targets.shape[1], part)]
        padded = []
        for lanes in counted.split([len(memory[0]) for memory in memories]):
            count, tails = lanes.numel(), self._model.softmax.rows_of_tails(lanes.flatten())
            for rows, share in zip(tails, self._tail_shares, strict=True):
                room = _capacity(count * share, count) - len(rows)
                if room < 0:
                    return None
                padded.append(F.pad(rows, (0, room), value=count))
        return padded

    def _padding(self, targets: Tensor) -> tuple[int, int]:
        """Return how many tokens a segment with these targets has less than the longest one: before it, behind it."""
        return 0, self._settings.longest_segment - targets.shape[1]

    def _without_graph(self, inputs: Tensor, targets: Tensor, memories: list[Memory]) -> Tensor:
        """Do what `EagerStep` does; if memory runs out, drop the graphs, which hold the memory of another step."""
        run = functools.partial(super().forward_backward, inputs, targets, memories)
        if self._replay is None:
            return run()
        device, before = self._model.device, [list(memory) for memory in memories]
        random_numbers = generator_state(device)
        with contextlib.suppress(torch.OutOfMemoryError):
            return run()
        self._replay, self._replay_update, self._has_updated, self._gradients = None, None, False, []
        self._model.forget_gradients()
        torch.cuda.empty_cache()
        for memory, tensors in zip(memories, before, strict=True):
            memory[:] = tensors
        set_generator_state(random_numbers, device)
        return run()

    def norm(self) -> Tensor:
        is_known = self._is_replayed and not self.scaler.is_enabled()
        return self._norm.clone() if is_known else super().norm()

    def _total_norm(self) -> Tensor:
        return super()._total_norm() if self._unclipped is None else self._unclipped.total_norm()

    def _clip(self, max_norm: float) -> None:
        if self._unclipped is None:
            super()._clip(max_norm)
        else:
            self._unclipped.clip(max_norm, self._norm)

    def _update(self) -> None:
        """See `EagerStep`; the first update after a replay runs eagerly, so that libraries initialize themselves."""
        run = super()._update
        if not (self._is_replayed and self._captures_update):
            return run()
        if self._has_updated and self._replay_update is None:
            self._replay_update = self._captured(run, warm_up=0)
            self._captures_update = self._replay_update is not None
        self._has_updated = True
        (self._replay_update or run)()

    def _capture(self, inputs: Tensor, targets: Tensor, memories: list[Memory], rows: list[Tensor]) -> None:
        device, padding = inputs.device, self._padding(targets)
        self._tokens = [F.pad(inputs, padding), F.pad(send(targets, device), padding)]
        self._tokens += [send(of_tail, device).clone() for of_tail in rows]
        self._memories = [[tensor.clone() for tensor in memory] for memory in memories]
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            self._replay = self._captured(self._run_on_fixed_tensors)
            if self._replay is None and self.compiles:  # the compiler may be what failed
                self.compiles = False
                self._replay = self._captured(self._run_on_fixed_tensors)
        self._captures = self._replay is not None
        self._gradients = [(parameter, parameter.grad) for parameter in self._model.parameters()]
        self._model.forget_gradients()

    def _captured(self, run: Callable[[], Result], **warm_up: int) -> Callable[[], Result] | None:
        """Return a function that replays the kernels of `run`; None if they cannot be captured."""
        try:
            return self._capture_graph(run, self._model.device, **warm_up)
        except UsageError as error:
            self.notes.append(str(error))
            return None

    def _run(self, number: int, inputs: Tensor, targets: Tensor, memory: Memory) -> Tensor:
        tails = len(self._tail_shares)
        self._model.softmax.tail_rows = self._rows[number * tails :][:tails] or None
        if self._matrices is None:
            return super()._run(number, inputs, targets, memory)
        if number == 0:
            self._matrices.refresh()
        with self._matrices.in_use(adds=number > 0, waits=self._unclipped is not None):
            return super()._run(number, inputs, targets, memory)

    def _run_on_fixed_tensors(self) -> tuple[Tensor, Tensor]:
        """Compute gradients and the new memories; return the losses (2,) and the norm of the gradients (0-d)."""
        self._model.forget_gradients()  # the backward pass then writes gradients instead of adding to them
        memories = [list(memory) for memory in self._memories]
        inputs, targets, *self._rows = self._tokens
        self._padded_seg_len = self._seg_len if self._settings.seg_len_jitter else None
        try:
            losses = super().forward_backward(inputs, targets, memories)
        finally:
            self._rows, self._padded_seg_len, self._model.softmax.tail_rows = [], None, None
        for own, new in zip(self._memories, memories, strict=True):
            foreach.copy_(own, new)
        return losses, losses[0] if self.scaler.is_enabled() else super().norm()


def _capacity(expected: float, limit: int) -> int:
    """Return how many rows a tail of the softmax has for this expected number of targets, with a margin."""
    return min(limit, math.ceil(1.25 * expected + 6 * math.sqrt(expected)))


def make_step(
    parallel: DataParallel, capture_graph: CaptureGraph | None = None, tail_shares: Sequence[float] = ()
) -> EagerStep:
    """Return the step of a training run: captured on CUDA, if its kernels are the same in every step.

    `capture_graph` makes the graphs; by default CUDA's, on CUDA.
    """
    device = parallel.model.device
    capture_graph = capture_graph or (graphs_of_one_pool() if device.type == "cuda" else None)
    reason = _eager_reason(parallel)
    if capture_graph is not None and reason is None:
        return CapturedStep(parallel, capture_graph, tail_shares)
    step = EagerStep(parallel)
    if capture_graph is not None:
        step.notes.append(f"training steps run without CUDA graphs, which takes longer: {reason}")
    return step


def _eager_reason(parallel: DataParallel) -> str | None:
    """Return why a training run cannot capture its steps as CUDA graphs; None if it can."""
    model = parallel.model
    if parallel.world.size > 1:
        return "several processes exchange gradients"
    if model.attention_backend != "auto":
        return "attention is written out" if model.attention_backend else "the model has no layers with attention"
    if getattr(model.settings, "auxiliary_losses", False):
        return "auxiliary losses change from step to step"
    if not model.memory_keeps_length(parallel.settings.seg_len):
        return "the memory changes its length from step to step, since compression_rate does not divide seg_len"
    return None
