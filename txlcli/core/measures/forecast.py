"""Memory of a training step, counted on tensors without data: nothing is allocated.

A step is run forward and backward with few layers, sequences and softmax columns. Further layers, sequences and columns
are identical to those, so larger sizes follow exactly. Segment and memory have their real lengths.
"""

import contextlib
import dataclasses
import functools
import gc
import weakref
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings, RnnSettings, TransformerSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.attention_tiles import first_tiles_only
from txlcli.core.kernels.device import DTYPES, autocast, unlimited_memory
from txlcli.core.kernels.linear import cached_casts
from txlcli.core.kernels.normalizer import BlockSize
from txlcli.core.kernels.private import observed_results, tensors_without_data
from txlcli.core.kernels.score_buffer import Workspace, scores_at_once
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.registry import make_model
from txlcli.core.model.softmax import AdaptiveSoftmax
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training.optimizer import OPTIMIZERS

CPU = torch.device("cpu")
FLOAT = 4  # bytes; weights, gradients and optimizer state stay fp32
TRACED_TOKENS, TRACED_COLUMNS = 1 << 11, 512
"""Tokens of a micro-batch above which sequences are extrapolated, and columns of the softmax from which more are."""
TRACED_BLOCKS = 8
"""Most blocks of queries, and of rows of the softmax, into which a segment is divided in a trace."""
LSTM_NUMBERS = 6
"""Numbers that oneDNN's LSTM keeps for the backward pass for each token and unit: four gates, cell, output."""
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
    """On a CPU, DistributedDataParallel's second copy of the gradients; on a GPU its buckets are the gradients."""
    gathered: int = 0
    """With train.parallel = "fsdp", whole weights and gradients of the root and of the layers at work."""
    optimizer: int
    average: int
    memory: int = 0
    activations: int = 0
    """Tensors that the backward pass reads."""
    workspace: int = 0
    """On a CPU, temporary tensors beyond the gradients; those of single operations on CUDA are not counted."""

    @property
    def total(self) -> int:
        """All bytes."""
        return sum(vars(self).values())

    def to_json(self) -> dict[str, int]:
        """Return the bytes by purpose, and their total."""
        return vars(self) | {"total": self.total}


@functools.lru_cache(maxsize=8)
def parameter_shapes(settings: ModelSettings, vocab_size: int) -> dict[str, torch.Size]:
    """Return the shapes of a model's parameters by name."""
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    return {name: parameter.shape for name, parameter in model.named_parameters()}


def parameters_by_part(settings: ModelSettings, vocab_size: int) -> dict[str, int]:
    """Count the parameters of each part of a model; a softmax tied to the embedding has only biases and clusters."""
    counts = dict.fromkeys((*PARTS.values(), "other layers"), 0)
    for name, shape in parameter_shapes(settings, vocab_size).items():
        counts[next((part for piece, part in PARTS.items() if piece in name), "other layers")] += shape.numel()
    return {part: count for part, count in counts.items() if count}


def state_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU, processes: int = 1
) -> StepBytes:
    """Return the bytes of weights, gradients and optimizer state alone, of the process that holds most."""
    shapes, count = parameter_shapes(model, vocab_size), OPTIMIZERS[train.optimizer].state_tensors
    is_divided = train.parallel == "fsdp" and processes > 1
    parts = processes if is_divided else 1  # each process has some rows of every weight, rounded up
    sizes = {name: -(-shape[0] // parts) * shape[1:].numel() * FLOAT for name, shape in shapes.items()}
    weights = sum(sizes.values())
    optimizer = sum(size * count(name, shapes[name], train) for name, size in sizes.items())
    if train.parallel == "zero" and processes > 1:
        from txlcli.core.training.parallel_zero import largest_state_bytes  # noqa: PLC0415 - takes a second

        optimizer = largest_state_bytes(model, vocab_size, train, processes)
    return StepBytes(
        weights=weights,
        gradients=weights,
        buckets=weights if processes > 1 and device.type == "cpu" and not is_divided else 0,
        gathered=_gathered_bytes(shapes, train) if is_divided else 0,
        optimizer=optimizer,
        average=weights if train.average != "none" else 0,
    )


def _gathered_bytes(shapes: Mapping[str, torch.Size], train: TrainSettings) -> int:
    """Return the bytes of whole weights and gradients that fsdp gathers: of the root, and of the layers at work."""
    by_layer: Counter[str] = Counter()
    for name, shape in shapes.items():
        by_layer[".".join(name.split(".")[:2]) if name.startswith("layers.") else ""] += shape.numel()
    root = by_layer.pop("", 0)
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
    step, shapes = _Step.of(model, vocab_size, train, device), parameter_shapes(model, vocab_size)
    return dataclasses.replace(
        state_bytes(model, vocab_size, train, device=device, processes=processes),
        memory=train.batch_size * _memory_bytes(step.model, train.mem_len, DTYPES[train.precision].itemsize),
        activations=step.saved_bytes() - _divided_casts(shapes, train, device),
        workspace=_workspace_bytes(step, shapes, train, processes) if device.type == "cpu" else 0,
    )


def logit_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU) -> int:
    """Return the part of the activations that grows with both the batch and the vocabulary: the logits."""
    step = _Step.of(model, vocab_size, train, device)
    of_fewer = [
        dataclasses.replace(step, batch_size=batch_size, columns=columns).saved_bytes()
        for batch_size in (2, 3)
        for columns in (TRACED_COLUMNS, 2 * TRACED_COLUMNS)
    ]
    of_columns = of_fewer[3] - of_fewer[2] - (of_fewer[1] - of_fewer[0])
    return of_columns * step.batch_size * step.columns // TRACED_COLUMNS


def with_plain_softmax(model: ModelSettings) -> ModelSettings:
    """Return settings with one band: the rows that a tail computes depend on the text, not on the sizes."""
    return dataclasses.replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)


@dataclass(frozen=True, kw_only=True)
class _Step:
    """Forward and backward pass of a micro-batch, whose bytes are linear in layers, sequences and columns."""

    model: ModelSettings
    """With a plain softmax."""
    train: TrainSettings
    """Only what changes the tensors of a step, so that steps that are counted alike are equal."""
    on_gpu: bool
    n_layers: int
    batch_size: int
    """Sequences of a micro-batch."""
    columns: int
    """Columns of a plain softmax: the mean number of an adaptive one."""

    @classmethod
    def of(cls, model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device) -> "_Step":
        """Return the step of one process."""
        on_gpu = device.type != "cpu"
        # Triton's kernels keep no probabilities and no dropout masks, but as many position scores.
        is_fused = on_gpu and train.attention == "auto"
        plain = with_plain_softmax(model)
        if is_fused and isinstance(plain, TransformerSettings):
            plain = dataclasses.replace(plain, attention_dropout=0.0)
        return cls(
            model=plain,
            train=TrainSettings(
                batch_size=1,
                seg_len=train.longest_segment,
                reread_len=train.reread_len,
                mem_len=train.mem_len,
                max_steps=1,
                precision="fp32" if DTYPES[train.precision] == torch.float32 else "bf16",
                loss_part=train.loss_part,
                recompute=train.recompute,
                attention=train.attention,
            ),
            on_gpu=on_gpu,
            n_layers=model.n_layers,
            batch_size=train.batch_size // train.accumulate,
            columns=round(softmax_columns(bands(model, vocab_size))),
        )

    def saved_bytes(self) -> int:
        """Return the bytes of the tensors that the backward pass reads."""
        saved, model, train = self.traced_bytes()[0], self.model, self.train
        if self.on_gpu:
            return saved + (self._layer_bytes() if train.recompute == "layers" else 0)
        is_tiled = isinstance(model, TransformerSettings) and not model.recurrent_state
        if not is_tiled or train.recompute or train.attention != "auto":
            return saved
        skipped = self._computed_scores(self.workspace) - self._computed_scores(Workspace())
        return saved - self.batch_size * self.n_layers * skipped * DTYPES[train.precision].itemsize

    def _computed_scores(self, workspace: Workspace) -> int:
        """Return how many scores a layer computes for a sequence: blocks of queries leave out most of the future."""
        assert isinstance(self.model, TransformerSettings)
        seg_len, heads = self.train.read_len, self.model.n_heads
        mem_len = self.model.visible_memory(self.model.memory_keys(self.train.mem_len))
        row_bytes = heads * (mem_len + 2 * seg_len - 1) * DTYPES[self.train.precision].itemsize
        block = workspace.block_of_queries(seg_len, row_bytes)
        ends = np.arange(seg_len, 0, -block)  # of the blocks
        return heads * int((np.minimum(ends, block) * (mem_len + ends)).sum())

    def _layer_bytes(self) -> int:
        """Return the bytes of the tensors that the backward pass of one layer reads."""
        kept = dataclasses.replace(self.train, recompute=True)
        three, two = (dataclasses.replace(self, train=kept, n_layers=n).traced_bytes()[0] for n in (3, 2))
        return three - two

    @property
    def workspace(self) -> Workspace:
        """Divides a long segment into few blocks of queries."""
        return Workspace(min_queries=max(Workspace().min_queries, -(-self.train.read_len // TRACED_BLOCKS)))

    def traced_bytes(self) -> tuple[int, int]:
        """Return the bytes of saved tensors, and of others at the peak: linear in each size beyond two smaller ones.

        A batch of one may be read in place where a larger one is copied; the first and the last layer may differ from
        those between.
        """
        most = max(3, TRACED_TOKENS // self.train.read_len)
        traced = {
            "n_layers": (1, 2) if isinstance(self.model, TransformerSettings) else (2, 3),
            "batch_size": (max(2, most // 2), most),
            "columns": (TRACED_COLUMNS, 2 * TRACED_COLUMNS),
        }
        for name, (low, high) in traced.items():
            size = getattr(self, name)
            if size > high:
                changes: list[dict[str, Any]] = [{name: low}, {name: high}]
                less, more = (dataclasses.replace(self, **change).traced_bytes() for change in changes)
                saved, temporary = (
                    smaller + (larger - smaller) * (size - low) // (high - low)
                    for smaller, larger in zip(less, more, strict=True)
                )
                return saved, temporary
        return _traced(self)


@functools.lru_cache(maxsize=1024)
def _traced(step: _Step) -> tuple[int, int]:
    """Run a step on tensors without data; return the saved and the temporary bytes."""
    live, saved, train = LiveBytes(), LiveBytes(), step.train

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor.untyped_storage()) not in weights:
            saved.observe(tensor)
        return tensor

    contexts = [unlimited_memory(), tensors_without_data(), observed_results(live.observe), first_tiles_only()]
    if step.on_gpu:  # these need no GPU, but keep what a GPU would keep
        contexts += [cached_casts(), scores_at_once()]
    with contextlib.ExitStack() as stack:
        gc.freeze()  # garbage collection of the objects of imported packages takes longer than the count
        stack.callback(gc.unfreeze)
        for context in contexts:
            stack.enter_context(context)
        network = _network(step)
        weights = {id(weight.untyped_storage()) for weight in network.parameters()}
        for weight in network.parameters():
            weight.grad = torch.zeros_like(weight)
        lengths = (train.read_len, train.seg_len)
        tokens, targets = (torch.zeros(step.batch_size, length, dtype=torch.int64) for length in lengths)
        with autocast(CPU, train.precision), torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
            memory = network.full_memory(step.batch_size, train.mem_len)
            gc.collect()  # tensors in reference cycles would count
            held = live.peak = live.now
            loss, _, memory[:] = network.objective(
                tokens, targets, memory, mem_len=train.mem_len, part=train.loss_part, progress=0.0
            )
        # Inputs of layers that are computed again are not all tensors of the graph, but they live until then.
        activations = live.now - held if train.recompute == "layers" else saved.now
        if not step.on_gpu:
            loss.backward()
    return activations, live.peak - held - activations


def _network(step: _Step) -> LanguageModel:
    """Return the model of a step in training, with few blocks in a long segment."""
    network = make_model(dataclasses.replace(step.model, n_layers=step.n_layers), step.columns).train()
    if step.on_gpu and step.train.recompute is True:  # position scores are kept
        network.softmax.recompute = True
    else:
        network.recompute(step.train.recompute)
    if isinstance(network, TransformerXL):
        network.set_attention_backend(step.train.attention)
        if not step.model.recurrent_state:
            network.workspace.min_queries = step.workspace.min_queries
    rows = -(-step.batch_size * step.train.seg_len // TRACED_BLOCKS)
    if rows > BlockSize.cpu_tokens:
        for module in network.modules():
            if isinstance(module, AdaptiveSoftmax):
                module.block_size = BlockSize(cpu_tokens=rows, cpu_bytes=FLOAT * rows * TRACED_COLUMNS)
    return network


class LiveBytes:
    """Bytes of the tensors that exist, and the most that existed at once; sparse tensors are left out."""

    def __init__(self) -> None:
        self.now = self.peak = 0
        self._storages: set[int] = set()

    def observe(self, tensor: Tensor) -> None:
        """Count the memory of a tensor, once, until it is freed."""
        if tensor.layout != torch.strided:
            return
        storage = tensor.untyped_storage()
        key, size = id(storage), storage.nbytes()
        if key not in self._storages:
            self._storages.add(key)
            self.now += size
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._free, key, size)

    def _free(self, key: int, size: int) -> None:
        self._storages.discard(key)
        self.now -= size


@functools.lru_cache(maxsize=64)
def _memory_bytes(model: ModelSettings, mem_len: int, itemsize: int) -> int:
    """Return the bytes of a full memory of one sequence, in a precision with numbers of this size."""
    with tensors_without_data(), autocast(CPU, "fp32" if itemsize == FLOAT else "bf16"):
        memory = make_model(model, 2).full_memory(1, mem_len)
    return sum(tensor.untyped_storage().nbytes() for tensor in memory)


def _workspace_bytes(step: _Step, shapes: Mapping[str, torch.Size], train: TrainSettings, processes: int) -> int:
    """Return the bytes of temporary tensors at the peak of a step on a CPU, at the end of the forward pass.

    The gradients of the layers, which are counted in full, do not exist yet, unless several micro-batches add to them
    or they are parts of buckets. Then the softmax has a second gradient of its tables.
    """
    narrow = dataclasses.replace(step, columns=min(step.columns, 2 * TRACED_COLUMNS))  # blocks of logits do not grow
    needed = max(0, narrow.traced_bytes()[1])
    if isinstance(step.model, RnnSettings) and step.model.arch == "lstm":
        units = step.batch_size * train.seg_len * sum(step.model.widths)
        needed += LSTM_NUMBERS * DTYPES[train.precision].itemsize * units
    of_layers = FLOAT * sum(shape.numel() for name, shape in shapes.items() if name.startswith("layers."))
    if train.accumulate == processes == 1:
        return max(0, needed - of_layers)
    return needed + FLOAT * sum(shape.numel() for shape in shapes.values()) - of_layers


def _divided_casts(shapes: Mapping[str, torch.Size], train: TrainSettings, device: torch.device) -> int:
    """Return the bytes of casts that fsdp need not keep: it gathers matrices of layers in the dtype of products."""
    itemsize = DTYPES[train.precision].itemsize
    if train.parallel != "fsdp" or device.type == "cpu" or itemsize == FLOAT:
        return 0
    matrices = (shape for name, shape in shapes.items() if name.startswith("layers.") and len(shape) == 2)
    return itemsize * sum(shape.numel() for shape in matrices)
