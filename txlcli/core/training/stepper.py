"""Takes the steps of a training run: on CUDA by replaying two graphs, gradients with their norm, and the update.

Axes: B batch, E tokens that are read again, L segment, M memory.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Generic, Literal, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

from txlcli.core.kernels.cuda_graph import WARM_UP, CaptureGraph, GraphPool, Replay, Result
from txlcli.core.kernels.device import forked_generators, product_dtype, send
from txlcli.core.kernels.private import foreach
from txlcli.core.model.base import LanguageModel, Memory
from txlcli.core.model.losses import counted_positions
from txlcli.core.model.softmax import fill_up, tail_capacity
from txlcli.core.training.exchange import Exchange
from txlcli.core.training.optimizer import OPTIMIZERS, set_rates
from txlcli.core.training.parallel import DataParallel
from txlcli.core.training.step import Batch, Step
from txlcli.errors import TrainingError, UsageError

Graph = TypeVar("Graph")
Stage = Literal["first eager", "due", "captured", "impossible"]


class Gradients(NamedTuple):
    """Results of the first graph."""

    losses: Tensor
    """As `Step.gradients` returns them, (2,)."""
    norm: Tensor
    """Norm of all gradients (0-d)."""
    of_parameters: list[Tensor | None]
    """Gradient of each parameter; `StepWeights.clip` may write the values of matrices."""
    memories: list[Memory]
    """Memory of each micro-batch after the segment, where the graph also reads it."""


class Capture(Generic[Graph]):
    """A graph, if there is one, and the stage of its capture; "impossible" means that CUDA cannot capture it."""

    def __init__(self, initial: Stage) -> None:
        self._initial = initial
        self.stage = initial
        self.graph: Graph | None = None

    @property
    def is_pending(self) -> bool:
        """True if there is no graph yet."""
        return self.stage in ("first eager", "due")

    def end_first_eager(self) -> None:
        """Let the graph be captured the next time, after its function has run eagerly."""
        self.stage = "due"

    def end(self, graph: Graph | None) -> None:
        """Keep the graph; None if CUDA cannot capture it."""
        self.graph = graph
        self.stage = "impossible" if graph is None else "captured"

    def drop(self) -> None:
        """Drop the graph, which is captured again."""
        self.graph = None
        if self.stage != "impossible":
            self.stage = self._initial


class Stepper:
    """Takes steps by replaying two graphs, if they launch the same kernels on the same memory; else eagerly.

    `_as_replayed` says which steps are replayed. If CUDA cannot capture them, the notes of the fast path say why.
    Jittered segments are padded to one length. An adaptive softmax has a fixed number of rows for each tail band, given
    its share of the tokens of the text in `tail_shares`.

    Args:
        eager: what takes the steps that are not replayed; the graphs replay its kernels.
        capture_graph: makes the graphs; without, no step is replayed.
        tail_shares: see above.
    """

    def __init__(
        self, eager: Step, capture_graph: CaptureGraph | None = None, tail_shares: Sequence[float] = ()
    ) -> None:
        self.eager = eager
        self.fast_path = eager.fast_path
        self.settings = eager.settings
        self._world = eager.parallel.world
        self._capture_graph = capture_graph
        self._tail_shares = tail_shares
        self._parameters = list(self.model.parameters())
        self._seg_len = torch.zeros((), dtype=torch.int64, device=self.model.device)
        self._gradient_capture = Capture[Replay[Gradients]]("due" if capture_graph else "impossible")
        # Registered optimizers do not promise that their steps can be captured; the scaler of fp16 may wait.
        may_capture_update = OPTIMIZERS[self.settings.optimizer].capturable and not eager.scaler.is_enabled()
        is_capturable = capture_graph is not None and may_capture_update
        # The first update after a replay runs eagerly, so that libraries initialize themselves.
        self._update_capture = Capture[Callable[[], None]]("first eager" if is_capturable else "impossible")
        self._is_replayed = False
        """True if the gradients of the step at work come from the graph."""
        if is_capturable:
            for group in eager.optimizer.param_groups:
                group["lr"] = torch.zeros((), device=self.model.device)

    @property
    def model(self) -> LanguageModel:
        """The view of the model that computes."""
        return self.eager.model

    def gradients(self, batches: Sequence[Batch], memories: list[Memory]) -> Tensor:
        """See `Step.gradients`; a step that fails is taken again from the memory before, without what failed."""
        if not self.is_captured:
            self.eager.rehearse(batches, memories)
        if not (self.fast_path.may_step_down or self._may_drop_graphs):
            # The memory before is not kept, so that the backward pass can free it.
            return self._replayed_or_eager(batches, memories)
        before = list(memories)

        def attempt() -> Tensor:
            memories[:] = [list(memory) for memory in before]
            return self._replayed_or_eager(batches, memories)

        return self.on_fast_path(attempt)

    def on_fast_path(self, compute: Callable[[], Result]) -> Result:
        """Call a function; if a part of the fast path fails, or memory runs out, call it again without this part."""
        while True:
            try:
                return compute()
            except Exception as error:
                self._step_down(error)

    def _step_down(self, error: Exception) -> None:
        """Leave out the part of the fast path that raised an error, or raise the error if it lies elsewhere.

        Graphs hold as much memory of the GPU as a step takes, so that without them an eager step may have enough.
        """
        is_helped_by_dropping = self._may_drop_graphs and isinstance(error, torch.OutOfMemoryError)
        if not is_helped_by_dropping:
            self.fast_path.step_down(error)
        self._gradient_capture.drop()
        self._update_capture.drop()
        self.model.forget_gradients()
        torch.cuda.empty_cache()

    @property
    def _may_drop_graphs(self) -> bool:
        return self.is_captured and self._world.size == 1

    def _replayed_or_eager(self, batches: Sequence[Batch], memories: list[Memory]) -> Tensor:
        """Compute the gradients of a step; the first graph is captured before its first replay."""
        replayed = self._as_replayed(batches, memories)
        if replayed is not None and self._gradient_capture.stage == "due":
            self._capture_gradients(replayed, memories)
        graph = self._gradient_capture.graph
        self._is_replayed = False
        if replayed is None or graph is None:
            return self.eager.gradients(batches, memories)
        self._is_replayed = True
        computed = graph(_tensors(replayed, memories))
        self.eager.grad_norm = computed.norm
        for memory, after in zip(memories, computed.memories, strict=True):
            memory[:] = after
        for parameter, gradient in zip(self._parameters, computed.of_parameters, strict=True):
            parameter.grad = gradient
        return computed.losses.clone()

    def norm(self) -> Tensor:
        """See `Step.norm`; the first graph has computed it, except in fp16."""
        if self._is_replayed and not self.eager.scaler.is_enabled():
            return self.eager.grad_norm.clone()
        return self.eager.norm()

    def update(self, rate_of: Callable[[float], float]) -> None:
        """See `Step.update`. The second graph reads the norm and the gradients where the first left them."""
        if not self._is_replayed:
            self.eager.update(rate_of)
            return
        set_rates(self.eager.optimizer, rate_of)
        capture = self._update_capture
        if capture.stage == "due":
            capture.end(self._capture(self.eager.clip_and_update, warm_up=0))
        elif capture.stage == "first eager":
            capture.end_first_eager()
        update = capture.graph or self.eager.clip_and_update
        update()
        self.model.forget_gradients()

    def _as_replayed(self, batches: Sequence[Batch], memories: list[Memory]) -> list[Batch] | None:
        """Return micro-batches as the graph reads them; None for a step that is not replayed.

        These steps are not replayed:

        - those at the beginning of an epoch, whose memories are not full;
        - a shorter segment at the end of an epoch, and a jittered segment of unusual length;
        - one with more targets in a tail of the softmax than the graph has rows;
        - until all graphs are captured, one that another process does not replay: all capture in the same step.
        """
        if self._gradient_capture.stage == "impossible":
            return None
        settings = self.settings
        length = batches[0].targets.shape[1]
        is_whole = length == settings.seg_len
        if settings.seg_len_jitter:
            is_whole = length <= settings.padded_segment
        is_reread = batches[0].inputs.shape[1] == settings.reread_len + length
        is_full = all(self.model.memory_is_full(memory, settings.mem_len) for memory in memories)
        replayed = self._padded(batches) if is_whole and is_reread and is_full else None
        is_pending = self._gradient_capture.is_pending or self._update_capture.is_pending
        if is_pending and self._world.any_of(replayed is None):
            return None
        return replayed

    def _padded(self, batches: Sequence[Batch]) -> list[Batch] | None:
        """Return micro-batches with the sizes of the graph; None if a tail has too few rows for one of them."""
        padded = []
        for batch in batches:
            of_graph = self._padded_batch(batch)
            if of_graph is None:
                return None
            padded.append(of_graph)
        return padded

    def _padded_batch(self, batch: Batch) -> Batch | None:
        """Return a micro-batch with the sizes of the graph; None if a tail of the softmax has too few rows for it."""
        inputs, targets, goal = batch
        seg_len = None
        since_reset = goal.since_reset
        if self.settings.seg_len_jitter:
            length = targets.shape[1]
            padding = (0, self.settings.padded_segment - length)
            inputs = F.pad(inputs, padding)
            targets = F.pad(targets, padding)
            seg_len = self._seg_len.fill_(length)
            if since_reset is not None:
                since_reset = F.pad(since_reset, padding)
        rows = self._tail_rows(targets)
        if rows is None:
            return None
        tail_rows = [send(tail, inputs.device) for tail in rows]
        goal = replace(goal, seg_len=seg_len, since_reset=since_reset, tail_rows=tail_rows or None)
        return Batch(inputs, send(targets, inputs.device), goal)

    def _tail_rows(self, targets: Tensor) -> list[Tensor] | None:
        """Return `Objective.tail_rows`; None if a tail has more targets than rows."""
        if not self._tail_shares:
            return []
        settings = self.settings
        part = settings.loss_part
        if settings.seg_len_jitter:
            part = "full"  # positions that do not count have the weight 0
        counted = targets[:, counted_positions(targets.shape[1], part)].flatten()
        count = len(counted)
        rows = []
        for tail, share in zip(self.model.softmax.rows_of_tails(counted), self._tail_shares, strict=True):
            size = tail_capacity(count * share, count)
            if len(tail) > size:
                return None
            rows.append(fill_up(tail, size, count))
        return rows

    def _capture_gradients(self, batches: list[Batch], memories: list[Memory]) -> None:
        """Capture the first graph, on copies of these tensors."""
        own_batches = list(map(_copied, batches))
        own_memories = []
        for memory in memories:
            own_memories.append([tensor.clone() for tensor in memory])
        compute = functools.partial(self._compute, own_batches, own_memories)
        with forked_generators(self.model.device):
            if isinstance(self.eager.weights, Exchange):
                launch = self._capture_with_exchange(self.eager.weights, compute)
            else:
                launch = self._capture(compute, warm_up=WARM_UP)
        graph = None
        if launch is not None:
            graph = Replay(launch, _tensors(own_batches, own_memories))
        self._gradient_capture.end(graph)
        self.model.forget_gradients()

    def _compute(self, batches: list[Batch], memories: list[Memory]) -> Gradients:
        """Compute what the first graph does; the memories become those after the segment."""
        self.model.forget_gradients()  # the backward pass then writes gradients instead of adding to them
        new_memories = [list(memory) for memory in memories]
        losses = self.eager.gradients(batches, new_memories)
        for own, new in zip(memories, new_memories, strict=True):
            self._check_shapes(own, new)
            foreach.copy_(own, new)
        # In fp16 the norm is computed after the graph, by the scaler; the loss stands in its place and is not read.
        norm = losses[0] if self.eager.scaler.is_enabled() else self.eager.norm()
        return Gradients(losses, norm, [parameter.grad for parameter in self._parameters], memories)

    def _capture_with_exchange(
        self, exchange: Exchange, compute: Callable[[], Gradients]
    ) -> Callable[[], Gradients] | None:
        """Return the first graph of several processes; None if CUDA cannot capture it in one of them.

        They capture it without the exchange before: whatever fails in one of them leaves none waiting.
        """
        reason = exchange.failure_without_sending(
            "rehearsal", functools.partial(self._graph_of, compute, warm_up=WARM_UP)
        )
        if reason is not None:
            self.fast_path.notes.append(reason)
            return None
        exchange.connect()
        return self._capture(compute, warm_up=0)

    def _check_shapes(self, before: Memory, after: Memory) -> None:
        """Check that a full memory keeps its shapes, since a graph reads and writes it in one place."""
        for old, new in zip(before, after, strict=True):
            if old.shape != new.shape:
                raise TrainingError(
                    f"a full memory of {type(self.model).__name__} changes from {tuple(old.shape)} to "
                    f"{tuple(new.shape)} in one segment; let its method memory_keeps_length return False"
                )

    def _capture(self, function: Callable[[], Result], *, warm_up: int) -> Callable[[], Result] | None:
        """Return the graph of a function; None if CUDA cannot capture it in one of the processes."""
        graph = None
        reason = None
        try:
            graph = self._graph_of(function, warm_up=warm_up)
        except UsageError as error:
            reason = str(error)
        reason = self._world.first_reason(reason)
        if reason is None:
            return graph
        self.fast_path.notes.append(reason)
        return None

    def _graph_of(self, function: Callable[[], Result], *, warm_up: int) -> Callable[[], Result]:
        """Return the graph of a function; raise a UsageError if CUDA cannot capture it in this process."""
        assert self._capture_graph is not None
        return self._capture_graph(function, self.model.device, warm_up=warm_up)

    @property
    def is_captured(self) -> bool:
        """True if steps are replayed."""
        return self._gradient_capture.stage == "captured"

    @property
    def path(self) -> str:
        """How steps have been computed up to now; see `path_in_words`."""
        return self.fast_path.in_words(captured=self.is_captured)


def _tensors(batches: list[Batch], memories: list[Memory]) -> list[Tensor]:
    """Return all tensors that the first graph reads, but the length of a segment.

    `Objective.progress` is a constant of the graph: steps that depend on it are not captured (`_eager_reason`).
    """
    tensors = list(chain(*memories))
    for inputs, targets, goal in batches:
        tensors += [inputs, targets, *(goal.tail_rows or ())]
        if goal.since_reset is not None:
            tensors.append(goal.since_reset)
    return tensors


def _copied(batch: Batch) -> Batch:
    """Return a micro-batch with copies of these tensors."""
    goal = batch.goal
    if goal.tail_rows is not None:
        goal = replace(goal, tail_rows=[tail.clone() for tail in goal.tail_rows])
    if goal.since_reset is not None:
        goal = replace(goal, since_reset=goal.since_reset.clone())
    return Batch(batch.inputs.clone(), batch.targets.clone(), goal)


def make_stepper(
    parallel: DataParallel, capture_graph: CaptureGraph | None = None, tail_shares: Sequence[float] = ()
) -> Stepper:
    """Return what takes the steps of a training run; `capture_graph` makes the graphs, by default CUDA's, on CUDA."""
    if capture_graph is None and parallel.model.device.type == "cuda":
        capture_graph = GraphPool()
    if capture_graph is None:
        return Stepper(Step(parallel))
    reason = _eager_reason(parallel)
    if reason is not None:
        stepper = Stepper(Step(parallel))
        stepper.fast_path.notes.append(f"training steps run without CUDA graphs, which takes longer: {reason}")
        return stepper
    dtype = product_dtype(parallel.settings.precision, parallel.model.dtype)
    eager = Step(parallel, copies=dtype if dtype != parallel.model.dtype else None)
    return Stepper(eager, capture_graph, tail_shares)


def _eager_reason(parallel: DataParallel) -> str | None:
    """Return why a training run cannot capture its steps as CUDA graphs; None if it can."""
    model = parallel.model
    settings = parallel.settings
    memory = f"the memory of {type(model).__name__}"
    reason = None
    if parallel.world.size > 1 and settings.parallel == "fsdp":
        reason = 'train.parallel = "fsdp" gathers the weights of one layer at a time'
    elif model.attention_backend is None:
        reason = "the model has no layers with attention"
    elif model.attention_backend != "auto":
        reason = "attention is written out"
    elif getattr(model.settings, "auxiliary_losses", False):
        reason = "auxiliary losses change from step to step"
    elif settings.seg_len_jitter and not model.memory_skips_padding:
        reason = f"{memory} does not skip the padding of segments with seg_len_jitter"
    elif not model.memory_keeps_length(settings.seg_len):
        reason = f"{memory} changes its length from step to step at this seg_len"
    return reason
