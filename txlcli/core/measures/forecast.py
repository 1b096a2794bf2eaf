"""Memory of a training step, counted on tensors without data: nothing is allocated.

The forward pass of a micro-batch is run once. Hooks of autograd count the tensors that the backward pass will read.
"""

import contextlib
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import torch
from torch import Tensor

from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.train_settings import AttentionBackend, LossPart, Recompute, TrainSettings
from txlcli.core.architectures.registry import make_model, parameter_shapes, products_of
from txlcli.core.kernels.modes import DTYPES, as_on_gpu, autocast, unlimited_memory
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.model.losses import Objective
from txlcli.core.training.distributed import of_one_process
from txlcli.core.training.optimizer import OPTIMIZERS
from txlcli.core.training.parallel import FLOAT_BYTES, largest_share_bytes

CPU = torch.device("cpu")
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
    "layers.": "other layers",
}

OTHER = "other"


@dataclass(frozen=True, kw_only=True)
class StepBytes:
    """Bytes that a training step holds at its peak in one process."""

    weights: int
    gradients: int
    buckets: int = 0
    """Gradients in bf16, as several processes send them with train.exchange_precision = "bf16"."""
    gathered: int = 0
    """With train.parallel = "fsdp", whole weights and gradients of the root and of the layers at work."""
    optimizer: int
    average: int
    memory: int = 0
    activations: int = 0
    """Tensors that the backward pass reads; temporary tensors of single operations are not counted."""

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(vars(self).values())

    def to_json(self) -> dict[str, int]:
        """Return the bytes by purpose, and their total."""
        return vars(self) | {"total": self.total}


def parameters_by_part(settings: ModelSettings, vocab_size: int) -> dict[str, int]:
    """Count the parameters of each part of a model; a softmax tied to the embedding has only biases and clusters."""
    counts = dict.fromkeys((*PARTS.values(), OTHER), 0)
    for name, shape in parameter_shapes(settings, vocab_size).items():
        counts[_part_of(name)] += shape.numel()
    return {part: count for part, count in counts.items() if count}


def _part_of(parameter: str) -> str:
    """Return the part of a model that a parameter belongs to, by its name."""
    for piece, part in PARTS.items():
        if piece in parameter:
            return part
    return OTHER


def state_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, *, processes: int = 1) -> StepBytes:
    """Return the bytes of weights, gradients and optimizer state alone, of the process that holds most."""
    shapes = parameter_shapes(model, vocab_size)
    count_state_tensors = OPTIMIZERS[train.optimizer].state_tensors
    parts = 1
    gathered = 0
    if train.parallel == "fsdp" and processes > 1:
        parts = processes
        gathered = _gathered_bytes(shapes, train)
    weights = 0
    optimizer = 0
    for name, shape in shapes.items():
        rows = math.ceil(shape[0] / parts) if shape else 1  # each process has some rows of every weight
        size = rows * shape[1:].numel() * FLOAT_BYTES
        weights += size
        optimizer += size * count_state_tensors(name, shape, train)
    updated = weights
    if train.parallel == "zero" and processes > 1:
        updated, optimizer = largest_share_bytes(shapes, train, processes)
    buckets = 0
    if train.exchange_precision == "bf16" and processes > 1:
        buckets = weights // 2
    return StepBytes(
        weights=weights,
        gradients=weights,
        buckets=buckets,
        gathered=gathered,
        optimizer=optimizer,
        average=updated if train.average != "none" else 0,
    )


def _gathered_bytes(shapes: Mapping[str, torch.Size], train: TrainSettings) -> int:
    """Return the bytes of whole weights and gradients that fsdp gathers: of the root, and of the layers at work."""
    by_layer: Counter[str] = Counter()
    root = 0
    for name, shape in shapes.items():
        if name.startswith("layers."):
            number = name.split(".")[1]
            by_layer[number] += shape.numel()
        else:
            root += shape.numel()
    # Two layers are gathered, and one has gradients, in the dtype of products; these are summed in fp32.
    at_work = max(by_layer.values(), default=0) * (3 * DTYPES[train.precision].itemsize + FLOAT_BYTES)
    return 2 * FLOAT_BYTES * root + at_work


def snapshot_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings) -> int:
    """Return the host memory of the copy that checkpoints are written from, which rank 0 keeps.

    It has the memory of all lanes, of which a step of one process needs a part, and the optimizer state of all weights.
    """
    whole = state_bytes(model, vocab_size, train)
    memory = train.batch_size * _memory_of_lane(model, train)
    return whole.weights + whole.optimizer + whole.average + memory


def _memory_of_lane(model: ModelSettings, train: TrainSettings) -> int:
    """Return the bytes of a full memory of one lane."""
    return _memory_bytes(with_plain_softmax(model), train.mem_len, DTYPES[train.precision].itemsize)


def step_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU, processes: int = 1
) -> StepBytes:
    """Return the bytes that a training step holds at its peak, by purpose, in the process with the largest batch.

    Activations are counted with the kernels of a CPU: fused attention on CUDA may keep less.
    """
    train = of_one_process(train, processes)
    state = state_bytes(model, vocab_size, train, processes=processes)
    step = _step_of(model, train, device)
    activations = _activation_bytes(step, train.batch_size // train.accumulate)
    if train.parallel == "fsdp" and processes > 1 and device.type != "cpu":
        activations -= _divided_casts(parameter_shapes(model, vocab_size), train)
    memory = train.batch_size * _memory_of_lane(model, train)
    return replace(state, memory=memory, activations=activations)


def with_plain_softmax(model: ModelSettings) -> ModelSettings:
    """Return settings with one band: the rows that a tail computes depend on the text, not on the sizes."""
    return replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Forward pass of a micro-batch of any size. Steps that are counted alike are equal, so that one is traced once."""

    model: ModelSettings
    """With a plain softmax."""
    seg_len: int
    """With padding."""
    reread_len: int
    mem_len: int
    loss_part: LossPart
    recompute: Recompute
    attention: AttentionBackend
    precision: str
    """fp32 or bf16, which stands for fp16, too."""
    on_gpu: bool
    has_kernels: bool
    """True if Triton's kernels compute attention."""


def _step_of(model: ModelSettings, train: TrainSettings, device: torch.device) -> _Step:
    """Return the forward pass of one process."""
    # Triton's kernels keep no probabilities and no dropout masks, but as many position scores.
    has_kernels = device.type == "cuda" and train.attention == "auto"
    plain = with_plain_softmax(model)
    if has_kernels and isinstance(plain, TransformerSettings):
        plain = replace(plain, attention_dropout=0.0)
    return _Step(
        model=plain,
        seg_len=train.padded_segment,
        reread_len=train.reread_len,
        mem_len=train.mem_len,
        loss_part=train.loss_part,
        recompute=train.recompute,
        attention=train.attention,
        precision="fp32" if DTYPES[train.precision] == torch.float32 else "bf16",
        on_gpu=device.type != "cpu",
        has_kernels=has_kernels,
    )


def _activation_bytes(step: _Step, batch_size: int) -> int:
    """Return the bytes of the tensors that the backward pass of a micro-batch reads."""
    n_layers = step.model.n_layers
    saved = _saved_bytes(step, batch_size, n_layers)
    if step.recompute != "layers":
        return saved + _kernel_bytes(step, batch_size)
    return saved + _layer_inputs(step, batch_size) + _bytes_of_one_layer(step, batch_size)


def _bytes_of_one_layer(step: _Step, batch_size: int) -> int:
    """Return the bytes that a layer keeps while it is computed again: all but attention probabilities.

    If layers differ, it is their mean, with a share of what is outside the layers.
    """
    keeping = replace(step, recompute=True)
    if not step.model.layers_are_alike:
        return _saved_bytes(keeping, batch_size, step.model.n_layers) // step.model.n_layers
    return _saved_bytes(keeping, batch_size, 3) - _saved_bytes(keeping, batch_size, 2)


def _layer_inputs(step: _Step, batch_size: int) -> int:
    """Return the bytes of memory and position keys, from which layers are computed again."""
    model = step.model
    itemsize = DTYPES[step.precision].itemsize
    keys = 0
    if isinstance(model, TransformerSettings) and model.encoding.projects_distances:
        key_len = step.reread_len + step.seg_len + model.memory_keys(step.mem_len)
        distances = min(key_len, model.window or key_len)
        keys = model.n_layers * distances * model.n_heads * model.d_head * itemsize
    return batch_size * _memory_bytes(model, step.mem_len, itemsize) + keys


def _kernel_bytes(step: _Step, batch_size: int) -> int:
    """Return the bytes that a CPU's kernels keep without telling autograd."""
    if step.on_gpu:
        return 0
    tokens = batch_size * step.seg_len
    return tokens * products_of(step.model).kernel_elements() * DTYPES[step.precision].itemsize


def _saved_bytes(step: _Step, batch_size: int, n_layers: int) -> int:
    """Return the bytes that are kept for the backward pass, with so many layers.

    Each sequence after the second keeps as much as any other: tensors of a single one can be views of others. Layers
    that are alike keep as much, unless some have a classifier of their own.
    """
    if batch_size > 3:
        two = _saved_bytes(step, 2, n_layers)
        three = _saved_bytes(step, 3, n_layers)
        return two + (batch_size - 2) * (three - two)
    model = step.model
    has_classifiers = isinstance(model, TransformerSettings) and model.auxiliary_losses
    if not model.layers_are_alike or has_classifiers or n_layers <= 2:
        return _traced_bytes(step, batch_size, n_layers)
    one = _traced_bytes(step, batch_size, 1)
    two = _traced_bytes(step, batch_size, 2)
    return one + (n_layers - 1) * (two - one)


@lru_cache(maxsize=1024)
def _traced_bytes(step: _Step, batch_size: int, n_layers: int) -> int:
    """Run the forward pass of a step on tensors without data; return the bytes that are kept for the backward pass."""
    saved = dict[int, torch.UntypedStorage]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            saved[id(storage)] = storage
        return tensor

    recompute = step.recompute
    if step.has_kernels and recompute is True:
        recompute = False  # these kernels keep scores
    # A GPU is not needed to keep what a GPU would keep.
    as_there = as_on_gpu() if step.on_gpu else contextlib.nullcontext()
    with unlimited_memory(), tensors_without_data(), as_there:
        # Logits are not kept: any size of the vocabulary gives the same bytes.
        model = make_model(replace(step.model, n_layers=n_layers), 2).train()
        model = model.on(attention=step.attention, recompute=recompute)
        targets = torch.zeros(batch_size, step.seg_len, dtype=torch.int64)
        tokens = torch.zeros(batch_size, step.reread_len + step.seg_len, dtype=torch.int64)
        with autocast(CPU, step.precision), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            memory = model.full_memory(batch_size, step.mem_len)
            model.objective(tokens, targets, memory, Objective(mem_len=step.mem_len, part=step.loss_part))
        weights = {id(weight.untyped_storage()) for weight in model.parameters()}
        return sum(storage.nbytes() for key, storage in saved.items() if key not in weights)


@lru_cache(maxsize=64)
def _memory_bytes(model: ModelSettings, mem_len: int, itemsize: int) -> int:
    """Return the bytes of a full memory of one sequence, in a precision with elements of this size."""
    with tensors_without_data(), autocast(CPU, "fp32" if itemsize == FLOAT_BYTES else "bf16"):
        memory = make_model(model, 2).full_memory(1, mem_len)
    return sum(tensor.untyped_storage().nbytes() for tensor in memory)


def _divided_casts(shapes: Mapping[str, torch.Size], train: TrainSettings) -> int:
    """Return the bytes of casts that fsdp need not keep: it gathers matrices of layers in the dtype of products."""
    itemsize = DTYPES[train.precision].itemsize
    if itemsize == FLOAT_BYTES:
        return 0
    elements = 0
    for name, shape in shapes.items():
        if name.startswith("layers.") and len(shape) == 2:
            elements += shape.numel()
    return itemsize * elements
