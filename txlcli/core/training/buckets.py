"""Buckets: parameters whose gradients are exchanged together, in flat buffers."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, groupby
from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.core.kernels.updates import padded_numel, views_of
from txlcli.core.training.distributed import even_parts
from txlcli.core.training.flat import move_to

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


@dataclass(frozen=True, eq=False)
class Bucket:
    """Parameters whose gradients are sent together."""

    parameters: list[Tensor]
    leaves: list[Tensor]
    """Weights that passes read: the parameters, or their copies."""
    buffers: Buffers
    of_owner: dict[int, slice]
    """The part of the buffers that each owner updates."""
    own: slice
    """The part that this process updates."""
    layers: set[int]
    """Layers that the bucket belongs to; none if other parts of the model read it, too."""


def make_buckets(
    by_name: Mapping[str, Tensor],
    matrices: Iterable[Tensor],
    owners: Mapping[str, int],
    rank: int,
    *,
    copied: torch.dtype | None,
    sent: torch.dtype,
) -> tuple[list[Bucket], Buffers | None]:
    """Return the buckets of a model, in the order in which a backward pass completes their gradients.

    The matrices that passes read as copies are adjacent in one set of buffers, of which each bucket has a part; these
    buffers are returned, too, if there are copies.

    Args:
        by_name: the parameters. Their values move to the buffers if other processes or copies need them there.
        matrices: parameters that passes read as copies, in the dtype `copied`.
        owners: the process that updates each parameter, by name; empty if each process updates all of them.
        rank: of this process.
        copied: dtype of the copies; None if there are none.
        sent: dtype of the gradients that are sent.
    """
    are_copied = set(matrices)
    groups = list[list[str]]()
    for names in bucket_names({name: parameter.shape for name, parameter in by_name.items()}):
        by_owner = sorted(names, key=lambda name: owners.get(name, 0))
        groups.append([name for name in by_owner if by_name[name] in are_copied])
        groups.append([name for name in by_owner if by_name[name] not in are_copied])
    of_matrices = None
    if copied is not None:
        in_order = [by_name[name] for name in chain(*groups)]
        in_order = [parameter for parameter in in_order if parameter in are_copied]
        of_matrices = _make_buffers(in_order, copied, sent, moves=True)
    buckets = []
    begin = 0
    for names in filter(None, groups):
        parameters = [by_name[name] for name in names]
        if of_matrices is not None and parameters[0] in are_copied:
            end = begin + sum(map(padded_numel, parameters))
            buffers = Buffers(*(buffer[begin:end] for buffer in of_matrices))
            begin = end
        else:
            buffers = _make_buffers(parameters, parameters[0].dtype, sent, moves=bool(owners))
        buckets.append(_make_bucket(names, parameters, buffers, owners, rank))
    return buckets, of_matrices


def _make_buffers(parameters: Sequence[Tensor], copied: torch.dtype, sent: torch.dtype, *, moves: bool) -> Buffers:
    """Return buffers for parameters, to which their values move if `moves`: others read them then."""
    gradients = parameters[0].new_zeros(sum(map(padded_numel, parameters)))
    masters = gradients[:0]
    if moves:
        masters = torch.zeros_like(gradients)
        move_to(masters, parameters)
    return Buffers(
        gradients,
        sent=gradients if sent == gradients.dtype else torch.zeros_like(gradients, dtype=sent),
        masters=masters,
        copies=masters if copied == gradients.dtype else torch.zeros_like(gradients, dtype=copied),
    )


def _make_bucket(
    names: Sequence[str], parameters: list[Tensor], buffers: Buffers, owners: Mapping[str, int], rank: int
) -> Bucket:
    """Return the bucket of parameters that are ordered by owner."""
    leaves = parameters
    if buffers.copies.dtype != buffers.gradients.dtype:
        leaves = [view.detach().requires_grad_() for view in views_of(buffers.copies, parameters)]
    of_owner = {}
    begin = 0
    for owner, own in groupby(zip(names, parameters, strict=True), lambda pair: owners.get(pair[0], 0)):
        end = begin + sum(padded_numel(parameter) for _, parameter in own)
        of_owner[owner] = slice(begin, end)
        begin = end
    own_part = of_owner.get(rank, slice(0)) if owners else slice(None)
    layers = set[int]()
    if all(name.startswith("layers.") for name in names):
        layers = {_layer(name) for name in names}
    return Bucket(parameters, leaves, buffers, of_owner, own_part, layers)
