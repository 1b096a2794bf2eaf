"""The exchange of gradients between processes: flat buckets of them are added up while the backward pass runs.

A bucket is sent as soon as the backward pass has computed all its gradients: layers first, the tables of the embedding
last. A CUDA graph captures the exchange with the step, on the stream of the process group.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, compress, groupby
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from txlcli.core.kernels.private import foreach
from txlcli.core.training.distributed import even_parts
from txlcli.core.training.flat import (
    Weights,
    aligned,
    clip_factor,
    large_updates,
    matrices_of,
    move_to,
    swapped_in,
    views_of,
)
from txlcli.core.training.parallel import DataParallel

LAYER_BUCKETS = 5
"""Largest number of buckets of layers; with all other parameters there are at most eight buckets."""
FEW = 4
"""Tensors that are cast one by one; more of them are joined and then cast, by two kernels."""


def bucket_names(shapes: Mapping[str, torch.Size]) -> list[list[str]]:
    """Divide parameters into buckets, in the order in which a backward pass completes their gradients.

    These are the matrices after the layers, with those of the last layers; the matrices of the other layers; vectors
    and everything else; the tables of the embedding, to which the embedding itself adds last.
    """
    by_layer = defaultdict[int, list[str]](list)
    others = list[str]()
    tables = list[str]()
    last_layer = max((_layer(name) for name in shapes if name.startswith("layers.")), default=0)
    for name, shape in shapes.items():
        if name.startswith("embedding.tables."):
            tables.append(name)
        elif len(shape) < 2 or not name.startswith(("layers.", "softmax.tables.")):
            others.append(name)
        else:
            by_layer[_layer(name) if name.startswith("layers.") else last_layer].append(name)
    layers = [by_layer[number] for number in sorted(by_layer, reverse=True)]
    buckets = []
    for part in even_parts(len(layers), min(LAYER_BUCKETS, len(layers)) or 1):
        buckets.append(list(chain.from_iterable(layers[part.start : part.stop])))
    return [bucket for bucket in (*buckets, others, tables) if bucket]


def _layer(name: str) -> int:
    return int(name.split(".")[1])


class _Buffers(NamedTuple):
    """Flat buffers of one layout, in which each parameter has the same place."""

    gradients: Tensor
    """Sums of the micro-batches, then of all processes, in float32."""
    sent: Tensor
    """The gradients as they are sent: the same buffer, or one in bf16."""
    masters: Tensor
    """The parameters."""
    copies: Tensor
    """What passes read: the parameters, or copies of them in 16 bits."""

    def part(self, at: slice) -> "_Buffers":
        """Return a part of each buffer."""
        return _Buffers(*(buffer[at] for buffer in self))


@dataclass
class _Bucket:
    """Parameters whose gradients are sent together."""

    parameters: list[Tensor]
    leaves: list[Tensor]
    """What passes read: the parameters, or their copies."""
    buffers: _Buffers
    of_owner: dict[int, slice]
    """The part of the buffers that each owner updates."""
    layers: set[int]
    """Layers that the bucket belongs to; none if other parts of the model read it, too."""
    received: list[distributed.Work] = field(default_factory=list)
    """Weights that are on their way."""
    missing: int = 0
    """Gradients that the backward pass at work has not computed yet."""


class Exchange(Weights):
    """The weights of several processes, which add up their gradients during the last backward pass of a step.

    With owners (train.parallel = "zero", ZeRO stage 1 of Rajbhandari et al. 2020), each gradient is added up in the
    process that updates the parameter, and the next forward pass receives the weights from there.

    Which parameters have a gradient must be the same in all processes.

    Args:
        parallel: the model, and the owner of each parameter.
        dtype: of copies of the matrices, which passes read instead of these; without, there are none.
    """

    def __init__(self, parallel: DataParallel, dtype: torch.dtype | None = None) -> None:
        super().__init__(parallel)
        self._world = parallel.world
        self._owners = parallel.owners
        is_bf16 = parallel.settings.exchange_precision == "bf16"
        self._sent_dtype = torch.bfloat16 if is_bf16 else self._model.dtype
        self._accumulates = parallel.settings.accumulate > 1
        self._is_paused = False
        self._works = list[distributed.Work]()
        self._announced = set[int]()
        """Layers before which the model has called `before_layer`."""
        self._given = set[Tensor]()
        """Parameters that have a gradient in the step at work."""
        self._is_active = False
        self._is_first = self._is_last = True
        self._complete = 0
        """Number of buckets that are complete."""
        self._parameters = dict(self._model.named_parameters())
        self._own = set(parallel.own_weights().values())
        self._matrices = [module.weight for module in matrices_of(self._model)] if dtype else []
        self._buckets = self._make_buckets(dtype or self._model.dtype)
        self._leaves = dict[Tensor, Tensor]()
        """The copies, by the parameters that passes read them in place of."""
        for bucket in self._buckets:
            if bucket.leaves is not bucket.parameters:
                self._leaves |= zip(bucket.parameters, bucket.leaves, strict=True)
            for leaf in bucket.leaves:
                leaf.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket))
        self._update_large = None
        if self._matrices and not self._owners:
            buffer, copies = self._of_matrices[2:]
            self._update_large = large_updates(parallel, self._matrices, buffer=buffer, copies=copies)
        self.refresh()

    def _make_buckets(self, dtype: torch.dtype) -> list[_Bucket]:
        """Return the buckets, those of the matrices with copies in a dtype as parts of the same buffers."""
        matrices = set(self._matrices)
        groups = list[list[str]]()
        for names in bucket_names({name: parameter.shape for name, parameter in self._parameters.items()}):
            by_owner = sorted(names, key=self._owner)
            groups.append([name for name in by_owner if self._parameters[name] in matrices])
            groups.append([name for name in by_owner if self._parameters[name] not in matrices])
        self._matrices = [self._parameters[name] for name in chain(*groups) if self._parameters[name] in matrices]
        self._of_matrices = self._make_buffers(self._matrices, dtype)
        buckets = []
        begin = 0
        for names in filter(None, groups):
            if self._parameters[names[0]] in matrices:
                end = begin + sum(aligned(self._parameters[name]) for name in names)
                buffers = self._of_matrices.part(slice(begin, end))
                begin = end
            else:
                buffers = self._make_buffers([self._parameters[name] for name in names], self._model.dtype)
            buckets.append(self._make_bucket(names, buffers))
        return buckets

    def _make_buffers(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> _Buffers:
        """Return buffers for parameters, with copies in a dtype, to which their values move if others read them."""
        size = sum(map(aligned, parameters))
        gradients = torch.zeros(size, device=self._model.device, dtype=self._model.dtype)
        sent = gradients
        if self._sent_dtype != gradients.dtype:
            sent = torch.zeros_like(gradients, dtype=self._sent_dtype)
        masters = gradients[:0]
        copies = masters
        if dtype != gradients.dtype or self._owners:
            masters = torch.zeros_like(gradients)
            copies = masters
            move_to(masters, parameters)
        if dtype != gradients.dtype:
            copies = torch.zeros_like(gradients, dtype=dtype)
        return _Buffers(gradients, sent, masters, copies)

    def _make_bucket(self, names: list[str], buffers: _Buffers) -> _Bucket:
        """Return the bucket of parameters that are ordered by owner."""
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        leaves = parameters
        if buffers.copies.dtype != buffers.gradients.dtype:
            leaves = [view.detach().requires_grad_() for view in views_of(buffers.copies, parameters)]
        of_owner = {}
        begin = 0
        for owner, own in groupby(names, self._owner):
            end = begin + sum(aligned(self._parameters[name]) for name in own)
            of_owner[owner] = slice(begin, end)
            begin = end
        of_layers = [name for name in names if name.startswith("layers.")]
        layers = {_layer(name) for name in of_layers} if of_layers == names else set[int]()
        return _Bucket(parameters, leaves, buffers, of_owner, layers)

    def _owner(self, name: str) -> int:
        return self._owners.get(name, 0)

    def _own_part(self, bucket: _Bucket) -> slice:
        """Return the part of the buffers of a bucket that this process updates."""
        if not self._owners:
            return slice(None)
        return bucket.of_owner.get(self._world.rank, slice(0))

    @contextlib.contextmanager
    def in_use(self, *, is_first: bool, is_last: bool) -> Iterator[None]:
        """Let the passes of a micro-batch run inside this block, and send the gradients of the last one."""
        if is_first:
            self._given.clear()
            self._receive_weights()
        self._is_first = is_first
        self._is_last = is_last
        self._complete = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.leaves)
        self._is_active = True
        with swapped_in(self._model, self._leaves), self._called_before_layers():
            yield
        while self._complete < len(self._buckets):  # some weights take no part in some steps
            self._add(self._buckets[self._complete])
        self._is_active = False
        if is_last:
            self._receive()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Send nothing inside this block, where a step may fail in one process alone."""
        self._is_paused = True
        try:
            yield
        finally:
            self._is_paused = False

    @torch.no_grad()
    def connect(self) -> None:
        """Send everything once, whatever it is: NCCL connects the processes then, which it may not do in a capture."""
        for bucket in self._buckets:
            self._send(bucket)
        self._wait(self._works)
        self._receive_weights()
        for bucket in self._buckets:
            self._wait(bucket.received)

    @torch.no_grad()
    def refresh(self) -> None:
        """Cast the matrices that this process updates once more, after a change."""
        for bucket in self._buckets:
            if bucket.leaves is not bucket.parameters:
                own = self._own_part(bucket)
                bucket.buffers.copies[own].copy_(bucket.buffers.masters[own])

    @torch.no_grad()
    def _receive_weights(self) -> None:
        """Begin to receive what the passes read of the weights that other processes have updated.

        The weights of a layer are awaited before the layer, once the model is known to announce it.
        """
        if not self._owners or self._is_paused:
            return
        for bucket in reversed(self._buckets):
            for owner, part in bucket.of_owner.items():
                bucket.received.append(self._broadcast(bucket.buffers.copies[part], owner))
        for bucket in self._buckets:
            if not bucket.layers or not bucket.layers <= self._announced:
                self._wait(bucket.received)

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
                self._wait(bucket.received)

    def _before_layer(self, number: int) -> None:
        """Wait for the weights of a layer."""
        self._announced.add(number)
        for bucket in self._buckets:
            if number in bucket.layers:
                self._wait(bucket.received)

    @staticmethod
    def _wait(works: list[distributed.Work]) -> None:
        """Let what follows wait for these; a GPU waits, the host does not."""
        for work in works:
            work.wait()
        works.clear()

    def _broadcast(self, tensor: Tensor, owner: int) -> distributed.Work:
        return distributed.broadcast(tensor, src=owner, group=self._world.steps, async_op=True)

    def _on_gradient(self, bucket: _Bucket, _: Tensor) -> None:
        """Note that a gradient of the bucket is complete; send all buckets that are, in the same order everywhere."""
        if not self._is_active:
            return
        bucket.missing -= 1
        while self._complete < len(self._buckets) and not self._buckets[self._complete].missing:
            self._add(self._buckets[self._complete])

    @torch.no_grad()
    def _add(self, bucket: _Bucket) -> None:
        """Add the gradients of a micro-batch to those of earlier ones, and send the sum after the last."""
        self._complete += 1
        target = bucket.buffers.gradients if self._accumulates else bucket.buffers.sent
        has_gradient = [leaf.grad is not None for leaf in bucket.leaves]
        gradients = [leaf.grad for leaf in bucket.leaves if leaf.grad is not None]
        self._given.update(compress(bucket.parameters, has_gradient))
        if self._is_first and len(gradients) < len(bucket.leaves):
            target.zero_()
        if gradients:
            self._add_to(target, gradients, partial(_views, bucket.leaves, has_gradient))
        for leaf in bucket.leaves:
            leaf.grad = None
        if self._is_last:
            self._send(bucket)

    def _add_to(self, target: Tensor, gradients: list[Tensor], views: Callable[[Tensor], list[Tensor]]) -> None:
        """Add gradients to a flat buffer, given its views, or replace its content if they are the first."""
        dtype = gradients[0].dtype
        added = gradients
        added_to = views(target)
        if dtype != target.dtype and len(gradients) > FEW:  # one kernel would cast each
            joined = torch.zeros_like(target, dtype=dtype)
            foreach.copy_(views(joined), gradients)
            added = [joined]
            added_to = [target]
        if self._is_first:
            foreach.copy_(added_to, added)
        else:
            foreach.add_(added_to, added)

    def _send(self, bucket: _Bucket) -> None:
        """Begin to add up the gradients of all processes: in each of them, or in the owner of each."""
        gradients, sent, *_ = bucket.buffers
        if self._accumulates and sent.dtype != gradients.dtype:
            sent.copy_(gradients)
        if self._is_paused:
            return
        group = self._world.steps
        if not self._owners:
            self._works.append(distributed.all_reduce(sent, group=group, async_op=True))
            return
        for owner, part in bucket.of_owner.items():
            self._works.append(distributed.reduce(sent[part], dst=owner, group=group, async_op=True))

    @torch.no_grad()
    def _receive(self) -> None:
        """Wait for all sums, and give them to the parameters that this process updates."""
        self._wait(self._works)
        for bucket in self._buckets:
            own = self._own_part(bucket)
            gradients, sent, *_ = bucket.buffers
            if sent.dtype != gradients.dtype:
                gradients[own].copy_(sent[own])
            for parameter, view in zip(bucket.parameters, views_of(gradients, bucket.parameters), strict=True):
                if parameter in self._given and parameter in self._own:
                    parameter.grad = view
        if self._owners and self._parallel.settings.precision == "fp16":
            self._spread_overflow()

    def _spread_overflow(self) -> None:
        """Let the gradients of all processes be NaN if those of one are not finite: all of them skip the step."""
        norm = self.total_norm()
        zero_or_nan = norm - norm
        for bucket in self._buckets:
            bucket.buffers.gradients[self._own_part(bucket)] += zero_or_nan

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d); with owners, each process knows the norms of its own."""
        parameters = self._parameters.values()
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norms = iter(foreach.norm(gradients) if gradients else [])
        zero = torch.zeros((), device=self._model.device)
        # In the order of a single process, whose result has the same bits.
        of_all = torch.stack([zero if parameter.grad is None else next(norms) for parameter in parameters])
        if self._owners:
            self.add_up(of_all)
        return torch.linalg.vector_norm(of_all)

    @torch.no_grad()
    def update(self, scaler: torch.amp.GradScaler, norm: Tensor) -> None:
        """Clip all gradients by their norm (0-d), step the optimizer, and cast the matrices."""
        factor = clip_factor(self._parallel.settings.clip, norm)
        if self._update_large is not None and self._update_large.can_step:
            self._update_large.step(self._of_matrices.gradients, factor)
            return
        if self._parallel.settings.clip is not None:
            own = [bucket.buffers.gradients[self._own_part(bucket)] for bucket in self._buckets]
            foreach.mul_([gradients for gradients in own if gradients.numel()], factor)
        scaler.step(self._parallel.optimizer)
        scaler.update()
        self.refresh()

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if not self._is_paused:
            super().add_up(tensor)


def _views(leaves: list[Tensor], has_gradient: list[bool], flat: Tensor) -> list[Tensor]:
    """Return the views of a flat buffer that belong to leaves with a gradient."""
    return list(compress(views_of(flat, leaves), has_gradient))
