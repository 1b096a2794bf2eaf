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
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures.registry import make_model, parameter_shapes, products_of
from txlcli.core.kernels.modes import DTYPES, as_on_gpu, autocast, unlimited_memory
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.losses import Objective
from txlcli.core.training.optimizer import OPTIMIZERS
from txlcli.core.training.parallel_zero import largest_share_bytes

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
    counts = dict.fromkeys((*PARTS.values(), "other layers"), 0)
    for name, shape in parameter_shapes(settings, vocab_size).items():
        counts[_part_of(name)] += shape.numel()
    return {part: count for part, count in counts.items() if count}


def _part_of(parameter: str) -> str:
    """Return the part of a model that a parameter belongs to, by its name."""
    for piece, part in PARTS.items():
        if piece in parameter:
            return part
    return "other layers"


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
        rows = math.ceil(shape[0] / parts)  # each process has some rows of every weight
        size = rows * shape[1:].numel() * FLOAT
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
    at_work = max(by_layer.values(), default=0) * (3 * DTYPES[train.precision].itemsize + FLOAT)
    return 2 * FLOAT * root + at_work


def snapshot_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, needed: StepBytes, processes: int
) -> int:
    """Return the host memory of the copy that checkpoints are written from, which rank 0 keeps.

    It has the memory of all lanes, of which a step of one process needs a part, and the optimizer state of all weights.
    """
    whole = state_bytes(model, vocab_size, train)
    return whole.weights + whole.optimizer + whole.average + processes * needed.memory


def step_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU, processes: int = 1
) -> StepBytes:
    """Return the bytes that a training step holds at its peak, by purpose.

    Activations are counted with the kernels of a CPU: fused attention on CUDA may keep less. `train` are the settings
    of one process (`of_one_process`).
    """
    state = state_bytes(model, vocab_size, train, processes=processes)
    step = _Step.of(model, train, device)
    memory = _memory_bytes(step.model, train.mem_len, DTYPES[train.precision].itemsize)
    casts = _divided_casts(parameter_shapes(model, vocab_size), train, device)
    return replace(state, memory=train.batch_size * memory, activations=step.saved_bytes() - casts)


def with_plain_softmax(model: ModelSettings) -> ModelSettings:
    """Return settings with one band: the rows that a tail computes depend on the text, not on the sizes."""
    return replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Forward pass of a micro-batch."""

    model: ModelSettings
    """With a plain softmax."""
    train: TrainSettings
    """Of a micro-batch; steps that are counted alike are equal."""
    on_gpu: bool
    has_kernels: bool
    """True if Triton's kernels compute attention."""

    @classmethod
    def of(cls, model: ModelSettings, train: TrainSettings, device: torch.device) -> "_Step":
        """Return the step of one process."""
        # Triton's kernels keep no probabilities and no dropout masks, but as many position scores.
        has_kernels = device.type == "cuda" and train.attention == "auto"
        plain = with_plain_softmax(model)
        if has_kernels and isinstance(plain, TransformerSettings):
            plain = replace(plain, attention_dropout=0.0)
        micro_batch = TrainSettings(  # without settings that change no size, so that these steps are traced once
            seg_len=train.seg_len,
            seg_len_jitter=train.seg_len_jitter,
            reread_len=train.reread_len,
            mem_len=train.mem_len,
            batch_size=train.batch_size // train.accumulate,
            max_steps=1,
            loss_part=train.loss_part,
            recompute=train.recompute,
            attention=train.attention,
            precision="fp32" if DTYPES[train.precision] == torch.float32 else "bf16",
        )
        return cls(model=plain, train=micro_batch, on_gpu=device.type != "cpu", has_kernels=has_kernels)

    def saved_bytes(self) -> int:
        """Return the bytes of the tensors that the backward pass reads."""
        if self.train.recompute != "layers":
            return _saved_bytes(self) + self._kernel_bytes()
        # While a layer is computed again, it keeps its tensors.
        keeping = replace(self, train=replace(self.train, recompute=True))
        one_layer = _saved_bytes(keeping.with_layers(3)) - _saved_bytes(keeping.with_layers(2))
        return _saved_bytes(self) + self._layer_inputs() + one_layer

    def with_layers(self, n_layers: int) -> "_Step":
        """Return the step of a model with so many layers."""
        return replace(self, model=replace(self.model, n_layers=n_layers))

    def with_batch_size(self, batch_size: int) -> "_Step":
        """Return the step of a micro-batch of so many sequences."""
        return replace(self, train=replace(self.train, batch_size=batch_size))

    def _layer_inputs(self) -> int:
        """Return the bytes of memory and position keys, from which layers are computed again."""
        model = self.model
        train = self.train
        itemsize = DTYPES[train.precision].itemsize
        keys = 0
        if isinstance(model, TransformerSettings) and model.encoding.projects_distances:
            read = train.reread_len + train.padded_segment
            key_len = read + model.memory_keys(train.mem_len)
            distances = min(key_len, model.window or key_len)
            keys = model.n_layers * distances * model.n_heads * model.d_head * itemsize
        return train.batch_size * _memory_bytes(model, train.mem_len, itemsize) + keys

    def _kernel_bytes(self) -> int:
        """Return the bytes that a CPU's kernels keep without telling autograd."""
        if self.on_gpu:
            return 0
        tokens = self.train.batch_size * self.train.padded_segment
        return tokens * products_of(self.model).kernel_elements() * DTYPES[self.train.precision].itemsize


def _saved_bytes(step: _Step) -> int:
    """Return the bytes that are kept for the backward pass.

    Each sequence after the second keeps as much as any other: tensors of a single one can be views of others. All
    layers of a Transformer keep as much, unless some have a classifier of their own.
    """
    batch_size = step.train.batch_size
    if batch_size > 3:
        two = _saved_bytes(step.with_batch_size(2))
        three = _saved_bytes(step.with_batch_size(3))
        return two + (batch_size - 2) * (three - two)
    model = step.model
    if not isinstance(model, TransformerSettings) or model.auxiliary_losses or model.n_layers <= 2:
        return _traced_bytes(step)
    one = _traced_bytes(step.with_layers(1))
    two = _traced_bytes(step.with_layers(2))
    return one + (model.n_layers - 1) * (two - one)


@lru_cache(maxsize=1024)
def _traced_bytes(step: _Step) -> int:
    """Run the forward pass of a step on tensors without data; return the bytes that are kept for the backward pass."""
    train = step.train
    saved = dict[int, torch.UntypedStorage]()

    def keep(tensor: Tensor) -> Tensor:
        if tensor.layout == torch.strided:
            storage = tensor.untyped_storage()
            saved[id(storage)] = storage
        return tensor

    # A GPU is not needed to keep what a GPU would keep.
    as_there = as_on_gpu() if step.on_gpu else contextlib.nullcontext()
    with unlimited_memory(), tensors_without_data(), as_there:
        network = _network(step)
        targets = torch.zeros(train.batch_size, train.padded_segment, dtype=torch.int64)
        tokens = torch.zeros(train.batch_size, train.reread_len + train.padded_segment, dtype=torch.int64)
        with autocast(CPU, train.precision), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            memory = network.full_memory(train.batch_size, train.mem_len)
            network.objective(tokens, targets, memory, Objective(mem_len=train.mem_len, part=train.loss_part))
        weights = {id(weight.untyped_storage()) for weight in network.parameters()}
        return sum(storage.nbytes() for key, storage in saved.items() if key not in weights)


def _network(step: _Step) -> LanguageModel:
    """Return the model of a step in training."""
    network = make_model(step.model, 2).train()  # logits are not kept: any number of them gives the same bytes
    recompute = step.train.recompute
    if step.has_kernels and recompute is True:
        recompute = False  # these kernels keep scores
    return network.on(attention=step.train.attention, recompute=recompute)


@lru_cache(maxsize=64)
def _memory_bytes(model: ModelSettings, mem_len: int, itemsize: int) -> int:
    """Return the bytes of a full memory of one sequence, in a precision with elements of this size."""
    with tensors_without_data(), autocast(CPU, "fp32" if itemsize == FLOAT else "bf16"):
        memory = make_model(model, 2).full_memory(1, mem_len)
    return sum(tensor.untyped_storage().nbytes() for tensor in memory)


def _divided_casts(shapes: Mapping[str, torch.Size], train: TrainSettings, device: torch.device) -> int:
    """Return the bytes of casts that fsdp need not keep: it gathers matrices of layers in the dtype of products."""
    itemsize = DTYPES[train.precision].itemsize
    if train.parallel != "fsdp" or device.type == "cpu" or itemsize == FLOAT:
        return 0
    elements = 0
    for name, shape in shapes.items():
        if name.startswith("layers.") and len(shape) == 2:
            elements += shape.numel()
    return itemsize * elements
