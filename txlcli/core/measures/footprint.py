"""Memory that a training step needs, computed without allocating it: parameters by part, bytes by purpose.

Axes: B batch, L segment, M memory, d model width, N layers.
"""

import contextlib
import dataclasses
import functools

import numpy as np
import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.attention_tiles import first_tiles_only
from txlcli.core.kernels.device import DTYPES, autocast
from txlcli.core.kernels.linear import cached_casts
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.kernels.score_buffer import Workspace, scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.measures.extrapolation import (
    COUNTED_LENGTH,
    SMALL_WIDTH,
    Sizes,
    at_lengths,
    beyond_lengths,
    linear,
)
from txlcli.core.measures.step_workspace import backward_bytes
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
    ".compression.": "compression",
    ".feed_forward.": "feed-forward",
    "norm.": "norms",
    "_gate.": "gates",
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
    """Return the bytes that a training step holds at its peak, by purpose.

    Activations are the tensors that the backward pass reads, counted by a forward pass over tensors without data, with
    the kernels of a CPU: fused attention on CUDA may keep less. On a CPU, the workspace is what the backward pass holds
    beyond them and the gradients, with the gates of an LSTM's kernel; that of single operations on CUDA is not counted.

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
        "workspace": _workspace_bytes(model, vocab_size, train, processes) if device.type == "cpu" else 0,
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


def _workspace_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, processes: int) -> int:
    """Return the bytes of temporary tensors at the peak of a step on a CPU.

    The peak is near the end of the forward pass. The gradients of the layers, which are counted in full, do not exist
    yet, unless several micro-batches add to them or they are parts of buckets.
    """
    columns = round(softmax_columns(bands(model, vocab_size)))
    needed = backward_bytes(with_plain_softmax(model), columns, train)
    if train.accumulate > 1 or processes > 1:
        return needed
    with torch.device("meta"):
        named = make_model(model, vocab_size).named_parameters()
        return max(0, needed - FLOAT * sum(one.numel() for name, one in named if name.startswith("layers.")))


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

    of_one = linear(by_layers, model.n_layers, (2, 3))  # auxiliary classifiers have logits in every layer
    width = round(softmax_columns(bands(model, vocab_size)))
    return of_one * (train.batch_size // train.accumulate) * width // SMALL_WIDTH


def with_plain_softmax(model: ModelSettings) -> ModelSettings:
    """Return settings with one band: the rows that a tail computes depend on the text, not on the sizes."""
    return dataclasses.replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)


def _activation_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device, *, extrapolate: bool
) -> int:
    """Count activations, with a plain softmax that has the mean number of columns of an adaptive one."""
    plain, width = with_plain_softmax(model), round(softmax_columns(bands(model, vocab_size)))
    mem_len, window = model.visible_memory(train.mem_len), model.attention_window
    if window is not None and window >= mem_len + train.seg_len:
        window = None
    sizes = Sizes(train.seg_len, mem_len, train.batch_size // train.accumulate, model.n_layers, width, window)

    @functools.cache
    def count(at: Sizes) -> int:
        sized = dataclasses.replace(train, seg_len=at.seg_len, mem_len=at.mem_len, valid_seg_len=None)
        layered = dataclasses.replace(plain, n_layers=at.n_layers)
        if isinstance(layered, TransformerSettings):
            layered = dataclasses.replace(layered, window=at.window)
        return _saved_bytes(layered, at.width, sized, device, at.batch_size)

    def skipped(at: Sizes) -> int:
        computed = computed_scores(model, train, device, seg_len=at.seg_len, mem_len=at.mem_len)
        return at.batch_size * at.n_layers * (at.seg_len * (at.mem_len + at.seg_len) - computed)

    if not extrapolate:
        return count(sizes)
    # A reconstruction loss has L^2 scores, which extrapolation by length does not know.
    if max(train.seg_len, train.mem_len) <= COUNTED_LENGTH or not model.keys_are_tokens:
        return at_lengths(count, sizes)
    return beyond_lengths(count, skipped, sizes)


def computed_scores(
    model: ModelSettings,
    train: TrainSettings,
    device: torch.device,
    *,
    seg_len: int,
    mem_len: int,
    most: int | None = None,
) -> int:
    """Return how many scores of one head are computed for a sequence: a CPU leaves out most of the future.

    Args:
        model: settings of the model.
        train: settings of the training.
        device: to train on.
        seg_len: L.
        mem_len: M.
        most: largest number of scores of a query, as of those by distance in a window; all keys by default.
    """
    block, mem_len = seg_len, model.visible_memory(model.memory_keys(mem_len))
    if isinstance(model, TransformerSettings) and train.attention == "auto" and device.type == "cpu":
        row_bytes = model.n_heads * (mem_len + 2 * seg_len - 1) * _score_bytes(train)
        block = Workspace().block_of_queries(seg_len, row_bytes)
    ends = np.arange(seg_len, 0, -block)  # of the blocks
    keys = mem_len + ends
    return int((np.minimum(ends, block) * np.minimum(keys, most or keys)).sum())


def _score_bytes(train: TrainSettings) -> int:
    return DTYPES[train.precision].itemsize


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
            stack.enter_context(first_tiles_only())
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
