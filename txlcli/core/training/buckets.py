"""Buckets: parameters whose gradients are exchanged together, in flat buffers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import NamedTuple

import torch
from torch import Tensor, distributed

from txlcli.core.model.base import LanguageModel
from txlcli.core.training.distributed import even_parts
from txlcli.core.training.flat import move_to, padded_numel, views_of

LAYER_BUCKETS = 5
"""Largest number of groups of layers. Each group, the tables and all other parameters are one bucket each, or two: the
matrices that passes read as copies, and the rest."""


def bucket_names(shapes: Mapping[str, torch.Size]) -> list[list[str]]:
    """Divide parameters into groups, in the order in which a backward pass completes their gradients.

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
        elif name.startswith("layers."):
            by_layer[_layer(name)].append(name)
        else:
            by_layer[last_layer].append(name)
    layers = [by_layer[number] for number in sorted(by_layer, reverse=True)]
    buckets = []
    for part in even_parts(len(layers), min(LAYER_BUCKETS, len(layers)) or 1):
        buckets.append(list(chain.from_iterable(layers[part.start : part.stop])))
    return [bucket for bucket in (*buckets, others, tables) if bucket]


def _layer(name: str) -> int:
    return int(name.split(".")[1])


class Buffers(NamedTuple):
    """Flat buffers of one layout, in which each parameter has the same place."""

    gradients: Tensor
    """Sums of the micro-batches, then of all processes, in float32."""
    sent: Tensor
    """The gradients as they are sent: the same buffer, or one in bf16."""
    masters: Tensor
    """The parameters; empty if they stay where they are, since neither copies nor other processes read this buffer."""
    copies: Tensor
    """Weights that passes read: copies in 16 bits, or the same buffer as `masters`."""

    def part(self, at: slice) -> "Buffers":
        """Return a part of each buffer."""
        return Buffers(*(buffer[at] for buffer in self))


@dataclass
class Bucket:
    """Parameters whose gradients are sent together."""

    parameters: list[Tensor]
    leaves: list[Tensor]
    """Weights that passes read: the parameters, or their copies."""
    buffers: Buffers
    of_owner: dict[int, slice]
    """The part of the buffers that each owner updates."""
    layers: set[int]
    """Layers that the bucket belongs to; none if other parts of the model read it, too."""
    received: list[distributed.Work] = field(default_factory=list)
    """Weights that are on their way."""
    missing: int = 0
    """Gradients that the backward pass at work has not computed yet."""


class BucketLayout:
    """The buckets of a model, in the order in which a backward pass completes their gradients.

    The matrices that passes read as copies are adjacent in one set of buffers, parts of which belong to buckets.

    Args:
        model: has the parameters. Their values move to the buffers if other processes or copies need them there.
        matrices: parameters that passes read as copies.
        owners: the process that updates each parameter, by name; empty if each process updates all of them.
        copied: dtype of the copies.
        sent: dtype of the gradients that are sent.
    """

    def __init__(
        self,
        model: LanguageModel,
        matrices: Iterable[Tensor],
        owners: Mapping[str, int],
        *,
        copied: torch.dtype,
        sent: torch.dtype,
    ) -> None:
        self._model = model
        self._parameters = dict(model.named_parameters())
        self._owners = owners
        self._sent = sent
        are_copied = set(matrices)
        groups = list[list[str]]()
        for names in bucket_names({name: parameter.shape for name, parameter in self._parameters.items()}):
            by_owner = sorted(names, key=self._owner)
            groups.append([name for name in by_owner if self._parameters[name] in are_copied])
            groups.append([name for name in by_owner if self._parameters[name] not in are_copied])
        in_order = [self._parameters[name] for name in chain(*groups)]
        self.matrices = [parameter for parameter in in_order if parameter in are_copied]
        """In the order of their buffers."""
        self.of_matrices = self._make_buffers(self.matrices, copied)
        self.buckets = list[Bucket]()
        begin = 0
        for names in filter(None, groups):
            parameters = [self._parameters[name] for name in names]
            if parameters[0] in are_copied:
                end = begin + sum(map(padded_numel, parameters))
                buffers = self.of_matrices.part(slice(begin, end))
                begin = end
            else:
                buffers = self._make_buffers(parameters, model.dtype)
            self.buckets.append(self._make_bucket(names, buffers))

    def _owner(self, name: str) -> int:
        return self._owners.get(name, 0)

    def _make_buffers(self, parameters: Sequence[Tensor], copied: torch.dtype) -> Buffers:
        """Return buffers for parameters, with copies in a dtype, to which their values move if others read them."""
        size = sum(map(padded_numel, parameters))
        gradients = torch.zeros(size, device=self._model.device, dtype=self._model.dtype)
        sent = gradients
        if self._sent != gradients.dtype:
            sent = torch.zeros_like(gradients, dtype=self._sent)
        masters = gradients[:0]
        copies = masters
        if copied != gradients.dtype or self._owners:
            masters = torch.zeros_like(gradients)
            copies = masters
            move_to(masters, parameters)
        if copied != gradients.dtype:
            copies = torch.zeros_like(gradients, dtype=copied)
        return Buffers(gradients, sent, masters, copies)

    def _make_bucket(self, names: list[str], buffers: Buffers) -> Bucket:
        """Return the bucket of parameters that are ordered by owner."""
        parameters: list[Tensor] = [self._parameters[name] for name in names]
        leaves = parameters
        if buffers.copies.dtype != buffers.gradients.dtype:
            leaves = [view.detach().requires_grad_() for view in views_of(buffers.copies, parameters)]
        of_owner = {}
        begin = 0
        for owner, own in groupby(names, self._owner):
            end = begin + sum(padded_numel(self._parameters[name]) for name in own)
            of_owner[owner] = slice(begin, end)
            begin = end
        layers = set[int]()
        if all(name.startswith("layers.") for name in names):
            layers = {_layer(name) for name in names}
        return Bucket(parameters, leaves, buffers, of_owner, layers)
