"""Memory that a training step needs, computed without allocating it: parameters by part, bytes by purpose.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import dataclasses
import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.device import DTYPES, autocast
from txlcli.core.kernels.linear import cached_casts
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.kernels.score_buffer import CACHE_BYTES, Workspace, scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.model.registry import make_model
from txlcli.core.training.optimizer import state_bytes

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
        processes: that share the batch. On a CPU, DistributedDataParallel's buckets are a second copy of the gradients;
            on a GPU they are the gradients.
        extrapolate: count activations at a few small sizes each of batch, layers, softmax, segment and memory, which
            takes seconds; else at the full size.
    """
    weights = FLOAT * sum(parameters_by_part(model, vocab_size).values())
    with tensors_without_data(), _precision(train):
        memory = make_model(model, vocab_size).full_memory(train.batch_size, train.mem_len)
    return {
        "weights": weights,
        "gradients": weights,
        "buckets": weights if processes > 1 and device.type == "cpu" else 0,
        "optimizer": optimizer_bytes(model, vocab_size, train, processes),
        "average": weights if train.average != "none" else 0,
        "memory": sum(tensor.untyped_storage().nbytes() for tensor in memory),
        "activations": _activation_bytes(model, vocab_size, train, device, _linear if extrapolate else _direct),
    }


def optimizer_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, processes: int) -> int:
    """Return the bytes of optimizer state that one process keeps, of several the one that keeps most."""
    if train.parallel == "zero" and processes > 1:
        from txlcli.core.training.parallel_zero import largest_state_bytes  # noqa: PLC0415 - takes a second

        return largest_state_bytes(model, vocab_size, train, processes)
    with torch.device("meta"):
        return state_bytes(make_model(model, vocab_size), train)


Count = Callable[[int], int]
"""Bytes by a size."""
SMALL_WIDTH = 500
"""Columns of the smaller softmax from which larger ones are extrapolated."""
COUNTED_LENGTH = 1024
"""Longest segment and memory, in tokens, whose activations are counted without extrapolation."""


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


def _activation_bytes(
    model: ModelSettings,
    vocab_size: int,
    train: TrainSettings,
    device: torch.device,
    estimate: Callable[[Count, int, tuple[int, int]], int],
) -> int:
    """Count activations, which grow linearly with batch, layers and softmax beyond the smallest sizes.

    A batch of one may be read in place where a larger one is copied; the first and the last layer may differ from those
    between.
    """
    # A plain softmax with the mean number of columns replaces an adaptive one.
    width = round(softmax_columns(bands(model, vocab_size)))
    plain = with_plain_softmax(model)

    def by_lengths(seg_len: int, mem_len: int) -> int:
        sized = dataclasses.replace(train, seg_len=seg_len, mem_len=mem_len, valid_seg_len=None)
        batch_size = train.batch_size // train.accumulate
        return estimate(lambda batch_size: by_batch_size(sized, batch_size), batch_size, (2, 3))

    def by_batch_size(sized: TrainSettings, batch_size: int) -> int:
        return estimate(lambda n_layers: by_layers(sized, batch_size, n_layers), model.n_layers, (2, 3))

    def by_layers(sized: TrainSettings, batch_size: int, n_layers: int) -> int:
        layered, widths = dataclasses.replace(plain, n_layers=n_layers), (SMALL_WIDTH, 2 * SMALL_WIDTH)
        return estimate(lambda ids: _saved_bytes(layered, ids, sized, device, batch_size), width, widths)

    if estimate is _direct or max(train.seg_len, train.mem_len) <= COUNTED_LENGTH:
        return by_lengths(train.seg_len, train.mem_len)
    return _extrapolate_lengths(by_lengths, model, train, device)


def _extrapolate_lengths(
    count: Callable[[int, int], int], model: ModelSettings, train: TrainSettings, device: torch.device
) -> int:
    """Extrapolate a count from short segments and memories: it is linear in 1, L, M, L K and the scores computed."""

    def parts(seg_len: int, mem_len: int) -> list[float]:
        pairs = seg_len * (mem_len + seg_len)
        return [1.0, seg_len, mem_len, pairs, computed_scores(model, train, device, seg_len=seg_len, mem_len=mem_len)]

    heads = model.n_heads if isinstance(model, TransformerSettings) else 1
    # So long that a CPU divides the scores of the longer segments into blocks, which leave out a part of the future.
    unit = max(128, 64 * math.ceil(math.sqrt(CACHE_BYTES / (20 * heads * _score_bytes(train))) / 64))
    points = [(2 * unit, 2 * unit), (4 * unit, 2 * unit), (5 * unit, 2 * unit), (2 * unit, unit), (4 * unit, unit)]
    if not train.mem_len:
        points = [(2 * unit, 0), (4 * unit, 0), (5 * unit, 0), (6 * unit, 0)]
    sizes = np.array(parts(train.seg_len, train.mem_len))
    relative_parts = np.array([parts(*point) for point in points]) / np.maximum(sizes, 1.0)
    weights = np.linalg.pinv(relative_parts.T) @ np.minimum(sizes, 1.0)
    return round(float(weights @ np.array([count(*point) for point in points], dtype=float)))


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


def _direct(count: Count, size: int, between: tuple[int, int]) -> int:
    return count(size)


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
