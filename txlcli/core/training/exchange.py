"""The exchange of gradients between processes: flat buckets of them are added up while the backward pass runs.

A bucket is sent as soon as the backward pass has computed all its gradients: layers first, the tables of the embedding
last. A CUDA graph captures the exchange with the step, on the stream of the process group.
"""

import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain, compress, groupby

import torch
from torch import Tensor, distributed, nn

from txlcli.core.kernels.private import foreach
from txlcli.core.training.distributed import even_parts
from txlcli.core.training.flat import CLIP_EPS, Weights, aligned, matrices_of, swapped_in, views_of
from txlcli.core.training.parallel import DataParallel

LAYER_BUCKETS = 5
"""Largest number of buckets of layers; with all other parameters there are at most eight buckets."""
FEW = 4
"""Tensors that are cast one by one; more of them are joined and then cast, by two kernels."""
SENT_DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
"""dtypes by `train.exchange_precision`."""


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


@dataclass
class _Bucket:
    """Parameters whose gradients are sent together, in flat buffers of one layout."""

    parameters: list[nn.Parameter]
    leaves: list[Tensor]
    """What passes read: the parameters, or copies of them in 16 bits."""
    runs: dict[int, slice]
    """The part of the buffers that each owner updates."""
    gradients: Tensor
    """Sums of the micro-batches, then of all processes, in float32."""
    sent: Tensor
    """The gradients as they are sent: the same buffer, or one in bf16."""
    masters: Tensor | None
    """The parameters, if other buffers are copied from them."""
    copies: Tensor | None
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
        self._sent_dtype = SENT_DTYPES[parallel.settings.exchange_precision]
        self._accumulates = parallel.settings.accumulate > 1
        self._is_paused = False
        self._works = list[distributed.Work]()
        self._given = set[Tensor]()
        """Parameters that have a gradient in the step at work."""
        self._is_active = False
        self._is_first = self._is_last = True
        self._complete = 0
        """Number of buckets that are complete."""
        has_copy = {module.weight for module in matrices_of(self._model)} if dtype else set[Tensor]()
        self._buckets = list[_Bucket]()
        parameters = dict(self._model.named_parameters())
        self._parameters = list(parameters.values())
        self._own = set(parallel.own_weights().values())
        for names in bucket_names({name: parameter.shape for name, parameter in parameters.items()}):
            copied = [name for name in names if parameters[name] in has_copy]
            uncopied = [name for name in names if parameters[name] not in has_copy]
            if copied:
                self._buckets.append(self._bucket({name: parameters[name] for name in copied}, dtype))
            if uncopied:
                self._buckets.append(self._bucket({name: parameters[name] for name in uncopied}, None))
        self._leaves = dict[Tensor, Tensor]()
        """The copies, by the parameters that passes read them in place of."""
        for bucket in self._buckets:
            if bucket.copies is not None:
                self._leaves |= zip(bucket.parameters, bucket.leaves, strict=True)
            for leaf in bucket.leaves:
                leaf.register_post_accumulate_grad_hook(partial(self._on_gradient, bucket))

    def _bucket(self, parameters: dict[str, nn.Parameter], dtype: torch.dtype | None) -> _Bucket:
        """Return a bucket of these parameters, with copies in a dtype, if one is given."""
        by_owner = sorted(parameters, key=self._owner)
        runs = {}
        begin = 0
        for owner, names in groupby(by_owner, self._owner):
            end = begin + sum(aligned(parameters[name]) for name in names)
            runs[owner] = slice(begin, end)
            begin = end
        in_order = [parameters[name] for name in by_owner]
        gradients = in_order[0].detach().new_zeros(begin)
        is_sent_whole = self._sent_dtype == gradients.dtype
        bucket = _Bucket(
            parameters=in_order,
            leaves=list(in_order),
            runs=runs,
            gradients=gradients,
            sent=gradients if is_sent_whole else torch.zeros_like(gradients, dtype=self._sent_dtype),
            masters=torch.zeros_like(gradients) if dtype or self._owners else None,
            copies=torch.zeros_like(gradients, dtype=dtype) if dtype else None,
        )
        if bucket.masters is not None:
            for parameter, master in zip(in_order, views_of(bucket.masters, in_order), strict=True):
                master.copy_(parameter.detach())
                parameter.data = master
        if bucket.copies is not None:
            bucket.leaves = [view.detach().requires_grad_() for view in views_of(bucket.copies, in_order)]
        return bucket

    def _owner(self, name: str) -> int:
        return self._owners.get(name, 0)

    def _own_part(self, bucket: _Bucket) -> slice:
        """Return the part of the buffers of a bucket that this process updates."""
        if not self._owners:
            return slice(None)
        return bucket.runs.get(self._world.rank, slice(0))

    @contextlib.contextmanager
    def in_use(self, *, is_first: bool, is_last: bool) -> Iterator[None]:
        """Let the passes of a micro-batch run inside this block, and send the gradients of the last one."""
        if is_first:
            self._given.clear()
            self._read_weights()
        self._is_first = is_first
        self._is_last = is_last
        self._complete = 0
        for bucket in self._buckets:
            bucket.missing = len(bucket.leaves)
        self._is_active = True
        with swapped_in(self._model, self._leaves):
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
        self._read_weights()

    @torch.no_grad()
    def _read_weights(self) -> None:
        """Cast the copies once more, and receive the weights that other processes have updated."""
        works = list[distributed.Work]()
        for bucket in reversed(self._buckets):
            read = bucket.masters
            if bucket.masters is not None and bucket.copies is not None:
                own = self._own_part(bucket)
                read = bucket.copies
                read[own].copy_(bucket.masters[own])
            if not self._owners or self._is_paused:
                continue
            assert read is not None
            for owner, part in bucket.runs.items():
                works.append(self._broadcast(read[part], owner))
        self._wait(works)

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
        target = bucket.gradients if self._accumulates else bucket.sent
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
        if self._accumulates and bucket.sent is not bucket.gradients:
            bucket.sent.copy_(bucket.gradients)
        if self._is_paused:
            return
        group = self._world.steps
        if not self._owners:
            self._works.append(distributed.all_reduce(bucket.sent, group=group, async_op=True))
            return
        for owner, part in bucket.runs.items():
            self._works.append(distributed.reduce(bucket.sent[part], dst=owner, group=group, async_op=True))

    @torch.no_grad()
    def _receive(self) -> None:
        """Wait for all sums, and give them to the parameters that this process updates."""
        self._wait(self._works)
        for bucket in self._buckets:
            own = self._own_part(bucket)
            if bucket.sent is not bucket.gradients:
                bucket.gradients[own].copy_(bucket.sent[own])
            for parameter, view in zip(bucket.parameters, views_of(bucket.gradients, bucket.parameters), strict=True):
                if parameter in self._given and parameter in self._own:
                    parameter.grad = view
        if self._owners and self._parallel.settings.precision == "fp16":
            self._spread_overflow()

    def _spread_overflow(self) -> None:
        """Let the gradients of all processes be NaN if those of one are not finite: all of them skip the step."""
        norm = self.total_norm()
        zero_or_nan = norm - norm
        for bucket in self._buckets:
            bucket.gradients[self._own_part(bucket)] += zero_or_nan

    def total_norm(self) -> Tensor:
        """Return the norm of all gradients together (0-d); with owners, each process knows the norms of its own."""
        gradients = [parameter.grad for parameter in self._parameters if parameter.grad is not None]
        norms = iter(foreach.norm(gradients) if gradients else [])
        zero = self._parameters[0].new_zeros(())
        # In the order of a single process, whose result has the same bits.
        of_all = torch.stack([zero if parameter.grad is None else next(norms) for parameter in self._parameters])
        if self._owners:
            self.add_up(of_all)
        return torch.linalg.vector_norm(of_all)

    @torch.no_grad()
    def update(self, scaler: torch.amp.GradScaler, norm: Tensor) -> None:
        """Clip all gradients by their norm (0-d), and step the optimizer."""
        max_norm = self._parallel.settings.clip
        if max_norm is not None:
            own = [bucket.gradients[self._own_part(bucket)] for bucket in self._buckets]
            factor = (max_norm / (norm + CLIP_EPS)).clamp(max=1.0)
            foreach.mul_([gradients for gradients in own if gradients.numel()], factor)
        scaler.step(self._parallel.optimizer)
        scaler.update()

    def add_up(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all processes."""
        if not self._is_paused:
            super().add_up(tensor)


def _views(leaves: list[Tensor], has_gradient: list[bool], flat: Tensor) -> list[Tensor]:
    """Return the views of a flat buffer that belong to leaves with a gradient."""
    return list(compress(views_of(flat, leaves), has_gradient))
