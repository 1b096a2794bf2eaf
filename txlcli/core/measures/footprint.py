"""Memory that a training step needs, computed without allocating it: parameters by part, bytes by purpose.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.device import DTYPES, autocast
from txlcli.core.kernels.linear import cached_casts
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.kernels.score_buffer import Workspace, scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.model.registry import make_model
from txlcli.core.training.optimizer import OPTIMIZERS
from txlcli.core.training.optimizer import state_bytes as optimizer_state_bytes

CPU = torch.device("cpu")
FLOAT = 4  # bytes; weights, gradients and optimizer state stay fp32
PARTS = {
    "embedding.": "embedding",
    "softmax.": "softmax",
    "auxiliary.": "auxiliary classifiers",
    "encoding.": "positions",
    ".attention.": "attention",
    ".feed_forward.": "feed-forward",
    "norm.": "layer norms",
    "layers.": "recurrent layers",  # parameters of layers with no other name
}


def parameters_by_part(settings: ModelSettings, vocab_size: int) -> dict[str, int]:
    """Count the parameters of each part of a model; a softmax tied to the embedding has only biases and clusters."""
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    counts = dict.fromkeys((*PARTS.values(), "other layers"), 0)
    for name, parameter in model.named_parameters():
        part = next((part for piece, part in PARTS.items() if piece in name), "other layers")
        counts[part] += parameter.numel()
    return {part: count for part, count in counts.items() if count}


def step_bytes(
    model: ModelSettings,
    vocab_size: int,
    train: TrainSettings,
    *,
    device: torch.device = CPU,
    processes: int = 1,
    extrapolate: bool = True,
) -> dict[str, int]:
    """Return the bytes that a training step holds at its peak, by purpose, without the workspace of single operations.

    Activations are the tensors that the backward pass reads, counted by a forward pass over tensors without data, with
    the kernels of a CPU: fused attention on CUDA may keep less. The workspace of an LSTM's kernel, which keeps its
    gates, is not counted.

    Args:
        model: settings of the model.
        vocab_size: V.
        train: settings of the training; of several processes, those of one (`data_parallel.of_one_process`).
        device: to train on.
        processes: that share the batch.
        extrapolate: count activations at a few small sizes each of batch, layers, softmax, segment and memory, which
            takes seconds; else at the full size.
    """
    with tensors_without_data(), _precision(train):
        memory = make_model(model, vocab_size).full_memory(train.batch_size, train.mem_len)
    return {
        **state_bytes(model, vocab_size, train, device=device, processes=processes),
        "memory": sum(tensor.untyped_storage().nbytes() for tensor in memory),
        "activations": _activation_bytes(model, vocab_size, train, device, extrapolate=extrapolate)
        - _divided_casts(model, vocab_size, train, device),
    }


def state_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU, processes: int = 1
) -> dict[str, int]:
    """Return the bytes of weights, gradients and optimizer state of one process, by purpose.

    Of several processes, the one that holds most counts. On a CPU, DistributedDataParallel's buckets are a second copy
    of the gradients; on a GPU they are the gradients. With train.parallel = "fsdp", "gathered" are the whole weights
    and gradients of the root and of the layers at work.
    """
    if train.parallel == "fsdp" and processes > 1:
        return _divided_state_bytes(model, vocab_size, train, processes)
    weights = FLOAT * sum(parameters_by_part(model, vocab_size).values())
    return {
        "weights": weights,
        "gradients": weights,
        "buckets": weights if processes > 1 and device.type == "cpu" else 0,
        "gathered": 0,
        "optimizer": _optimizer_bytes(model, vocab_size, train, processes),
        "average": weights if train.average != "none" else 0,
    }


def _optimizer_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, processes: int) -> int:
    """Return the bytes of optimizer state of one process that holds all weights."""
    if train.parallel == "zero" and processes > 1:
        from txlcli.core.training.parallel_zero import largest_state_bytes  # noqa: PLC0415 - takes a second

        return largest_state_bytes(model, vocab_size, train, processes)
    with torch.device("meta"):
        return optimizer_state_bytes(make_model(model, vocab_size), train)


def _divided_casts(model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device) -> int:
    """Return the bytes of the casts of matrices that a device with all weights keeps for the backward pass.

    With train.parallel = "fsdp" the matrices of the layers are gathered in the dtype of products.
    """
    itemsize = DTYPES[train.precision].itemsize
    if train.parallel != "fsdp" or device.type == "cpu" or itemsize == FLOAT:
        return 0
    with torch.device("meta"):
        named = make_model(model, vocab_size).named_parameters()
        return itemsize * sum(one.numel() for name, one in named if name.startswith("layers.") and one.dim() == 2)


def _divided_state_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, processes: int) -> dict[str, int]:
    """Return the bytes by purpose of a process that holds a part of every weight: some rows, rounded up."""
    with torch.device("meta"):
        named = dict(make_model(model, vocab_size).named_parameters())
    part = {name: FLOAT * -(-len(one) // processes) * one[0].numel() for name, one in named.items()}
    count = OPTIMIZERS[train.optimizer].state_tensors
    by_layer: dict[str, int] = {}
    for name, one in named.items():
        layer = ".".join(name.split(".")[:2]) if name.startswith("layers.") else ""
        by_layer[layer] = by_layer.get(layer, 0) + one.numel()
    root, largest = by_layer.pop("", 0), max(by_layer.values(), default=0)
    # Two layers are gathered, and one has gradients, in the dtype of products; these are summed in fp32.
    at_work = largest * (3 * DTYPES[train.precision].itemsize + FLOAT)
    return {
        "weights": sum(part.values()),
        "gradients": sum(part.values()),
        "buckets": 0,
        "gathered": 2 * FLOAT * root + at_work,
        "optimizer": sum(size * count(name, named[name].shape, train) for name, size in part.items()),
        "average": sum(part.values()) if train.average != "none" else 0,
    }


def snapshot_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, needed: dict[str, int], processes: int
) -> int:
    """Return the host memory of the copy that checkpoints are written from, which rank 0 keeps.

    Args:
        model: settings of the model.
        vocab_size: V.
        train: settings of the training.
        needed: bytes of a step of one process, by purpose (`step_bytes`).
        processes: that share the batch; the copy has the memory of all lanes and the optimizer state of all weights.
    """
    whole = state_bytes(model, vocab_size, train)
    return whole["weights"] + whole["optimizer"] + whole["average"] + processes * needed["memory"]


Count = Callable[[int], int]
"""Bytes by a size."""
SMALL_WIDTH = 500
"""Columns of the smaller softmax from which larger ones are extrapolated."""
COUNTED_LENGTH = 1024
"""Longest segment and memory, in tokens, whose activations are counted without extrapolation."""
SHORT_LENGTH = 64
"""Unit of the segments and memories from which longer ones are extrapolated, in tokens."""


def logit_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU) -> int:
    """Return the part of the activations that grows with both the batch and the vocabulary: the logits of the softmax.

    Args:
        model: settings of the model.
        vocab_size: V.
        train: settings of the training; logits of one micro-batch are kept at a time.
        device: to train on.
    """
    sized = dataclasses.replace(train, mem_len=0, batch_size=1, accumulate=1, valid_seg_len=None)

    def by_layers(n_layers: int) -> int:
        layered = dataclasses.replace(with_plain_softmax(model), n_layers=n_layers)
        sizes = [
            [_saved_bytes(layered, width, sized, device, batch) for width in (SMALL_WIDTH, 2 * SMALL_WIDTH)]
            for batch in (2, 3)
        ]
        (low, low_wide), (high, high_wide) = sizes
        return (high_wide - high) - (low_wide - low)

    of_one = _linear(by_layers, model.n_layers, (2, 3))  # auxiliary classifiers have logits in every layer
    width = round(softmax_columns(bands(model, vocab_size)))
    return of_one * (train.batch_size // train.accumulate) * width // SMALL_WIDTH


def with_plain_softmax(model: ModelSettings) -> ModelSettings:
    """Return settings with one band: the rows that a tail computes depend on the text, not on the sizes."""
    return dataclasses.replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)


class Sizes(NamedTuple):
    """Sizes on which the activations of a step depend."""

    seg_len: int
    """L."""
    mem_len: int
    """M."""
    batch_size: int
    """B of a micro-batch."""
    n_layers: int
    """N."""
    width: int
    """Columns of the softmax."""


SizedCount = Callable[[Sizes], int]
"""Bytes, or scores, by sizes."""


def _activation_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device, *, extrapolate: bool
) -> int:
    """Count activations, with a plain softmax that has the mean number of columns of an adaptive one."""
    plain, width = with_plain_softmax(model), round(softmax_columns(bands(model, vocab_size)))
    sizes = Sizes(train.seg_len, train.mem_len, train.batch_size // train.accumulate, model.n_layers, width)

    @functools.cache
    def count(at: Sizes) -> int:
        sized = dataclasses.replace(train, seg_len=at.seg_len, mem_len=at.mem_len, valid_seg_len=None)
        layered = dataclasses.replace(plain, n_layers=at.n_layers)
        return _saved_bytes(layered, at.width, sized, device, at.batch_size)

    def skipped(at: Sizes) -> int:
        computed = computed_scores(model, train, device, seg_len=at.seg_len, mem_len=at.mem_len)
        return at.batch_size * at.n_layers * (at.seg_len * (at.mem_len + at.seg_len) - computed)

    if not extrapolate:
        return count(sizes)
    if max(train.seg_len, train.mem_len) <= COUNTED_LENGTH:
        return _at_lengths(count, sizes)
    return _beyond_lengths(count, skipped, sizes)


def _at_lengths(count: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from small batches, numbers of layers and widths of the softmax: it is linear in each.

    A batch of one may be read in place where a larger one is copied; the first and the last layer may differ from those
    between.
    """

    def by_batch_size(batch_size: int) -> int:
        return _linear(lambda n_layers: by_layers(batch_size, n_layers), sizes.n_layers, (2, 3))

    def by_layers(batch_size: int, n_layers: int) -> int:
        small = sizes._replace(batch_size=batch_size, n_layers=n_layers)
        return _linear(lambda width: count(small._replace(width=width)), sizes.width, (SMALL_WIDTH, 2 * SMALL_WIDTH))

    return _linear(by_batch_size, sizes.batch_size, (2, 3))


def _beyond_lengths(count: SizedCount, skipped: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from short segments and memories, too.

    Args:
        count: bytes of the activations.
        skipped: scores of one head that blocks of queries leave out, in all sequences and layers.
        sizes: where to count.
    """
    narrow = sizes._replace(width=min(sizes.width, SMALL_WIDTH))
    total = _if_nothing_is_skipped(count, narrow)
    if skipped(narrow):
        small = narrow._replace(batch_size=min(sizes.batch_size, 2), n_layers=min(sizes.n_layers, 2))
        lengths = (SHORT_LENGTH << power for power in itertools.count(2))
        longer = (small._replace(seg_len=length, mem_len=min(length, sizes.mem_len)) for length in lengths)
        divided = next(at for at in longer if skipped(at))
        left_out = _if_nothing_is_skipped(count, divided) - count(divided)
        total -= left_out * skipped(narrow) // skipped(divided)
    return total + _logits_beyond(count, narrow, width=sizes.width)


def _if_nothing_is_skipped(count: SizedCount, sizes: Sizes) -> int:
    """Extrapolate a count from lengths so short that all scores are computed: it is linear in 1, L, M and L K."""
    unit, seg_len, mem_len = SHORT_LENGTH, sizes.seg_len, sizes.mem_len

    def at(segments: int, memories: int) -> int:
        return _at_lengths(count, sizes._replace(seg_len=segments * unit, mem_len=memories * unit))

    # Of lengths in units: constant + segment L + memory M + pair L (M + L).
    if mem_len:
        first = at(1, 1)
        pair = at(2, 2) - at(2, 1) - at(1, 2) + first
        memory = at(1, 2) - first - pair
        segment = at(2, 1) - first - 4 * pair
        constant = first - segment - memory - 2 * pair
    else:
        first, memory = at(1, 0), 0
        pair = (at(3, 0) - 2 * at(2, 0) + first) // 2
        segment = at(2, 0) - first - 3 * pair
        constant = first - segment - pair
    return constant + ((segment * seg_len + memory * mem_len) * unit + pair * seg_len * (mem_len + seg_len)) // unit**2


def _logits_beyond(count: SizedCount, sizes: Sizes, *, width: int) -> int:
    """Return how many more bytes a wider softmax saves: logits of B L tokens and, under autocast, casts of weights."""
    if width <= sizes.width:
        return 0

    def by_seg_len(seg_len: int) -> int:
        short = sizes._replace(seg_len=seg_len, mem_len=min(SHORT_LENGTH, sizes.mem_len))
        return _at_lengths(lambda at: count(at._replace(width=2 * SMALL_WIDTH)) - count(at), short)

    of_small = _linear(by_seg_len, sizes.seg_len, (SHORT_LENGTH, 2 * SHORT_LENGTH))
    return of_small * (width - sizes.width) // SMALL_WIDTH


def computed_scores(
    model: ModelSettings, train: TrainSettings, device: torch.device, *, seg_len: int, mem_len: int
) -> int:
    """Return how many scores of one head are computed for a sequence: a CPU leaves out most of the future."""
    block = seg_len
    if isinstance(model, TransformerSettings) and train.attention == "auto" and device.type == "cpu":
        row_bytes = model.n_heads * (mem_len + 2 * seg_len - 1) * _score_bytes(train)
        block = Workspace().block_of_queries(seg_len, row_bytes)
    blocks, rest = divmod(seg_len, block)
    left_out = block * (blocks * (blocks - 1) // 2 * block + blocks * rest)  # keys after each block
    return seg_len * (mem_len + seg_len) - left_out


def _score_bytes(train: TrainSettings) -> int:
    return DTYPES[train.precision].itemsize


def _linear(count: Count, size: int, between: tuple[int, int]) -> int:
    """Return the count at a size, extrapolated from two smaller sizes if it is beyond them."""
    first, second = between
    if size <= second:
        return count(size)
    smaller, larger = count(first), count(second)
    return smaller + (larger - smaller) * (size - first) // (second - first)


def _saved_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device, batch_size: int
) -> int:
    """Count the bytes that a step saves for its backward pass, without the weights."""
    saved: dict[int, Tensor] = {}  # by storage

    def keep(tensor: Tensor) -> Tensor:
        saved[id(tensor.untyped_storage())] = tensor
        return tensor

    with tensors_without_data():
        # FlexAttention, Triton's kernels and, on CUDA, those of sdpa keep no probabilities and no dropout masks, but as
        # many position scores.
        needs_cuda = train.attention in ("flex", "triton") or (train.attention == "sdpa" and device.type == "cuda")
        stand_in = make_model(_without_attention_dropout(model) if needs_cuda else model, vocab_size).train()
        stand_in.recompute(train.recompute)
        if not needs_cuda:
            stand_in.set_attention_backend(train.attention)
        weights = {id(parameter.untyped_storage()) for parameter in stand_in.parameters()}  # counted elsewhere
        tokens, targets = (torch.zeros(batch_size, train.seg_len, dtype=torch.int64) for _ in range(2))
        with contextlib.ExitStack() as stack:
            if device.type != "cpu":  # these need no GPU, but keep what a GPU would keep
                stack.enter_context(cached_casts())
                stack.enter_context(scores_at_once())
            stack.enter_context(_precision(train))
            stack.enter_context(torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor))
            memory = stand_in.full_memory(batch_size, train.mem_len)
            stand_in.objective(tokens, targets, memory, mem_len=train.mem_len, part=train.loss_part, progress=0.0)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in saved.items() if key not in weights)


def _without_attention_dropout(model: ModelSettings) -> ModelSettings:
    return dataclasses.replace(model, attention_dropout=0.0) if isinstance(model, TransformerSettings) else model


def _precision(train: TrainSettings) -> contextlib.AbstractContextManager[object]:
    """Multiply in the training's precision on a CPU; fp16 takes as many bytes as bf16."""
    return autocast(CPU, "fp32" if DTYPES[train.precision] == torch.float32 else "bf16")
