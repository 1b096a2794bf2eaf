"""The exchange of gradients between processes: flat buckets of them are added up while the backward pass runs.

A bucket is sent as soon as the backward pass has computed all its gradients: layers first, the tables of the embedding
last. A CUDA graph captures the exchange with the step, on the stream of the process group.

Passes read the `leaves` of a bucket; their gradients collect in `gradients` and travel in `sent`; the optimizer changes
the parameters, from which the leaves are cast if they have another dtype.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, distributed

from txlcli.core.kernels.private import foreach
from txlcli.core.kernels.updates import views_of
from txlcli.core.training.buckets import Bucket, make_buckets
from txlcli.core.training.distributed import failure_of
from txlcli.core.training.flat import StepWeights, clip_factor, large_updates, matrices_of, swapped_in
from txlcli.core.training.parallel import DataParallel

FEW = 4
"""Tensors that are cast one by one; more of them are joined and then cast, by two kernels."""


@dataclass
class Pass:
    """State of the forward and the backward pass of one micro-batch."""

    is_first: bool
    """True for the first micro-batch of its step."""
    is_last: bool
    waiting: list[Bucket]
    """Buckets that are not complete, in the order in which all processes send them."""
    missing: dict[Bucket, int]
    """Number of gradients of each bucket that the backward pass has not computed yet."""
    with_gradient: set[Tensor]
    """Parameters that have a gradient, of this or an earlier micro-batch of the step."""
    weights: dict[Bucket, list[distributed.Work]] = field(default_factory=dict)
    """Weights that are on their way."""
    sums: list[distributed.Work] = field(default_factory=list)
    """Gradients that are on their way."""


class Exchange(StepWeights):
    """The weights of several processes, which add up their gradients during the last backward pass of a step.

    With owners (train.parallel = "zero", ZeRO stage 1 of Rajbhandari et al. 2020), each gradient is added up in the
    process that updates the parameter, and the next forward pass receives the weights from there.

    Which parameters have a gradient must be the same in all processes.

    Args:
        parallel: the model, and the owner of each parameter.
        dtype: of copies of the matrices, which passes read instead of these; without, there are none.
    """

    _pass: Pass
    """At work, or the last one."""

    def __init__(self, parallel: DataParallel, dtype: torch.dtype | None = None) -> None:
        super().__init__(parallel)
        self._world = parallel.world
        self._owners = parallel.owners
        self._accumulates = parallel.settings.accumulate > 1
        self._is_paused = False
        """True while nothing is sent."""
        self._announced_layers = set[int]()
        """Layers before which the model has called `before_layer`."""
        self._parameters = dict(self._model.named_parameters())
        self._own = set(parallel.own_weights().values())
        matrices = [module.weight for module in matrices_of(self._model)] if dtype else []
        sent = torch.bfloat16 if parallel.settings.exchange_precision == "bf16" else self._model.dtype
        self._buckets, of_matrices = make_buckets(
            self._parameters, matrices, self._owners, self._world.rank, copied=dtype, sent=sent
        )
        self._leaves = dict[Tensor, Tensor]()
        """The copy that passes read in place of each parameter that has one."""
        for bucket in self._buckets:
            if bucket.leaves is not bucket.parameters:
                self._leaves |= zip(bucket.parameters, bucket.leaves, strict=True)
            for leaf in bucket.leaves:
                leaf.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket))
        if of_matrices is not None and not self._owners:
            buffer = of_matrices.masters
            self._large = large_updates(parallel, list(self._leaves), buffer=buffer, copies=of_matrices.copies)
            self._large_gradients = of_matrices.gradients
        self.refresh()

    @contextlib.contextmanager
    def in_use(self, *, is_first: bool, is_last: bool) -> Iterator[None]:
        """Let the passes of a micro-batch run inside this block, and send the gradients of the last one."""
        missing = {bucket: len(bucket.leaves) for bucket in self._buckets}
        with_gradient = set() if is_first else self._pass.with_gradient
        self._pass = Pass(is_first, is_last, list(self._buckets), missing, with_gradient)
        if is_first:
            self._receive_weights()
        for bucket in self._buckets:
            for leaf in bucket.leaves:
                leaf.grad = None  # a step that has failed leaves some
        with swapped_in(self._model, self._leaves), self._called_before_layers():
            yield
        while self._pass.waiting:  # some weights take no part in some steps
            self._complete_first_bucket()
        if is_last:
            self._receive_gradients()

    def failure_without_sending(self, name: str, function: Callable[[], object]) -> str | None:
        """Call a function in all processes, in turn and without sending; return why it fails in one of them, or None.

        None of them waits for one that has failed.
        """
        self._is_paused = True
        try:
            reason = self._world.in_turn(name, partial(failure_of, function))
        finally:
            self._is_paused = False
        return self._world.first_reason(reason)

    @torch.no_grad()
    def connect(self) -> None:
        """Send everything once, whatever it is: NCCL connects the processes then, which it may not do in a capture."""
        works = []
        for bucket in self._buckets:
            works += self._send_gradients(bucket)
        for bucket in reversed(self._buckets):
            works += self._send_weights(bucket)
        self._wait(works)
        sizes = [2]  # of the losses
        if self._owners:
            sizes.append(len(self._parameters))  # of the norms
        for size in sizes:  # NCCL may send little in another way than much
            self.add_up(torch.zeros(size, device=self._model.device))

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the matrices that this process updates once more, after a change."""
        for bucket in self._buckets:
            if bucket.leaves is not bucket.parameters:
                bucket.buffers.copies[bucket.own].copy_(bucket.buffers.masters[bucket.own])

    @torch.no_grad()
    def _receive_weights(self) -> None:
        """Begin to receive what the passes read of the weights that other processes have updated.

        The first pass waits for all of them, and notes which layers the model announces; later passes wait for the
        weights of these before the layer.
        """
        for bucket in reversed(self._buckets):
            self._pass.weights[bucket] = self._send_weights(bucket)
        for bucket in self._buckets:
            if not bucket.layers or not bucket.layers <= self._announced_layers:
                self._await_weights(bucket)

    def _send_weights(self, bucket: Bucket) -> list[distributed.Work]:
        """Begin to send what passes read of a bucket from the owner of each part to all other processes."""
        if not self._owners or self._is_paused:
            return []
        works = []
        for owner, part in bucket.of_owner.items():
            weights = bucket.buffers.copies[part]
            works.append(distributed.broadcast(weights, src=owner, group=self._world.steps, async_op=True))
        return works

    @contextlib.contextmanager
    def _called_before_layers(self) -> Iterator[None]:
        """Let the model announce its layers inside this block."""
        model = self._model
        model.before_layer = self._before_layer
        try:
            yield
        finally:
            model.before_layer = None
            for bucket in self._buckets:
                self._await_weights(bucket)

    def _before_layer(self, number: int) -> None:
        """Wait for the weights of a layer."""
        self._announced_layers.add(number)
        for bucket in self._buckets:
            if number in bucket.layers:
                self._await_weights(bucket)

    def _await_weights(self, bucket: Bucket) -> None:
        self._wait(self._pass.weights.pop(bucket, []))

    @staticmethod
    def _wait(works: list[distributed.Work]) -> None:
        """Let what follows wait for these; a GPU waits, the host does not."""
        for work in works:
            work.wait()
        works.clear()

    def _on_gradient(self, bucket: Bucket, _: Tensor) -> None:
        """Note that a gradient of the bucket is complete; send all buckets that are, in the same order everywhere."""
        missing = self._pass.missing
        missing[bucket] -= 1
        while self._pass.waiting and not missing[self._pass.waiting[0]]:
            self._complete_first_bucket()

    @torch.no_grad()
    def _complete_first_bucket(self) -> None:
        """Add the gradients of a micro-batch to those of earlier ones, and send the sum after the last."""
        bucket = self._pass.waiting.pop(0)
        target = bucket.buffers.gradients if self._accumulates else bucket.buffers.sent
        gradients = []
        for parameter, leaf, view in zip(
            bucket.parameters, bucket.leaves, views_of(target, bucket.leaves), strict=True
        ):
            if leaf.grad is not None:
                gradients.append(leaf.grad)  # perhaps in this buffer already, which a softmax reuses on a CPU
                self._pass.with_gradient.add(parameter)
            elif self._pass.is_first:
                view.zero_()
        if gradients:
            self._accumulate(bucket, target, gradients)
        for leaf in bucket.leaves:
            leaf.grad = None
        if self._pass.is_last:
            self._pass.sums += self._send_gradients(bucket)

    def _accumulate(self, bucket: Bucket, target: Tensor, gradients: list[Tensor]) -> None:
        """Add the gradients of a bucket to a flat buffer, or replace its content if they are the first."""
        added = gradients
        added_to = _views(bucket, target)
        dtype = gradients[0].dtype
        if dtype != target.dtype and len(gradients) > FEW:  # one kernel would cast each
            joined = torch.zeros_like(target, dtype=dtype)
            foreach.copy_(_views(bucket, joined), gradients)
            added = [joined]
            added_to = [target]
        if self._pass.is_first:
            foreach.copy_(added_to, added)
        else:
            foreach.add_(added_to, added)

    def _send_gradients(self, bucket: Bucket) -> list[distributed.Work]:
        """Begin to add up the gradients of all processes: in each of them, or in the owner of each."""
        gradients = bucket.buffers.gradients
        sent = bucket.buffers.sent
        if self._accumulates and sent.dtype != gradients.dtype:
            sent.copy_(gradients)
        if self._is_paused:
            return []
        group = self._world.steps
        if not self._owners:
            return [distributed.all_reduce(sent, group=group, async_op=True)]
        works = []
        for owner, part in bucket.of_owner.items():
            works.append(distributed.reduce(sent[part], dst=owner, group=group, async_op=True))
        return works

    @torch.no_grad()
    def _receive_gradients(self) -> None:
        """Wait for all sums, and give them to the parameters that this process updates."""
        self._wait(self._pass.sums)
        for bucket in self._buckets:
            gradients = bucket.buffers.gradients
            sent = bucket.buffers.sent
            if sent.dtype != gradients.dtype:
                gradients[bucket.own].copy_(sent[bucket.own])
            for parameter, view in zip(bucket.parameters, views_of(gradients, bucket.parameters), strict=True):
                if parameter in self._pass.with_gradient and parameter in self._own:
                    parameter.grad = view
        if self._owners and self._parallel.settings.precision == "fp16":
            self._spread_overflow()

    def _spread_overflow(self) -> None:
        """Let the gradients of all processes be NaN if those of one are not finite: all of them skip the step."""
        norm = self.total_norm()
        zero_or_nan = norm - norm
        for bucket in self._buckets:
            bucket.buffers.gradients[bucket.own] += zero_or_nan

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d); with owners, each process knows the norms of its own."""
        given = [parameter for parameter in self._parameters.values() if parameter.grad is not None]
        norms = dict[Tensor, Tensor]()
        if given:
            norms |= zip(given, foreach.norm([parameter.grad for parameter in given]), strict=True)
        zero = torch.zeros((), device=self._model.device)
        # In the order of a single process, whose result has the same bits.
        of_all = torch.stack([norms.get(parameter, zero) for parameter in self._parameters.values()])
        if self._owners:
            self.add_up(of_all)
        return torch.linalg.vector_norm(of_all)

    @torch.no_grad()
    def clip(self, norm: Tensor) -> None:
        if self._parallel.settings.clip is None:
            return
        own = [bucket.buffers.gradients[bucket.own] for bucket in self._buckets]
        factor = clip_factor(self._parallel.settings.clip, norm)
        foreach.mul_([gradients for gradients in own if gradients.numel()], factor)

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if not self._is_paused:
            super().add_up(tensor)


def _views(bucket: Bucket, flat: Tensor) -> list[Tensor]:
    """Return the views of a flat buffer that belong to leaves with a gradient."""
    views = zip(bucket.leaves, views_of(flat, bucket.leaves), strict=True)
    return [view for leaf, view in views if leaf.grad is not None]
