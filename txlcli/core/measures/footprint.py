"""What a training step needs, worked out without allocating anything: parameters by part, bytes by purpose.

Axes: B lanes, L segment, M memory, d model width, N layers.
"""

import contextlib
import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from txlcli.config.bands import bands
from txlcli.config.model_settings import ModelSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.device import autocast
from txlcli.core.kernels.linear import cached_casts
from txlcli.core.kernels.private import tensors_without_data
from txlcli.core.measures.cost import softmax_columns
from txlcli.core.model.registry import make_model
from txlcli.core.model.transformer_xl import TransformerXL
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
    "layers.": "recurrent layers",  # where the name says no more
}


def parameters_by_part(settings: ModelSettings, vocab_size: int) -> dict[str, int]:
    """Parameters of each part that a model has; of a softmax tied to the embedding only its biases and clusters."""
    with torch.device("meta"):
        model = make_model(settings, vocab_size)
    counts = dict.fromkeys(PARTS.values(), 0)
    for name, parameter in model.named_parameters():
        part = next(part for piece, part in PARTS.items() if piece in name)
        counts[part] += parameter.numel()
    return {part: count for part, count in counts.items() if count}


def step_bytes(
    model: ModelSettings, vocab_size: int, train: TrainSettings, *, device: torch.device = CPU
) -> dict[str, int]:
    """Bytes that a training step holds at its peak, by purpose; workspace of single operations comes on top.

    Activations are those that the backward pass will read, counted by a forward pass over tensors without contents,
    with the kernels of a CPU: those of CUDA may keep less of fused attention. The kernel of an LSTM keeps its gates in
    a workspace of its own, which is not among them.
    """
    weights = FLOAT * sum(parameters_by_part(model, vocab_size).values())
    with torch.device("meta"):
        optimizer = state_bytes(make_model(model, vocab_size), train)
    with tensors_without_data(), _precision(train):
        memory = make_model(model, vocab_size).full_memory(train.batch_size, train.mem_len)
    remembered = sum(tensor.untyped_storage().nbytes() for tensor in memory)
    return {
        "weights": weights,
        "gradients": weights,
        "optimizer": optimizer,
        "average": weights if train.average != "none" else 0,
        "memory": remembered,
        "activations": _activation_bytes(model, vocab_size, train, device),
    }


def _activation_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device) -> int:
    """Counted at two small sizes each of lanes, layers and softmax, which takes seconds: each further one adds alike.

    A single lane may be read where several are copied; the first and the last layer may be other than those between.
    """
    # Which rows a tail computes depends on the text; a plain softmax as wide as the bands are on average stands for it.
    width = round(softmax_columns(bands(model, vocab_size)))
    plain = dataclasses.replace(model, cutoffs=(), tie_projections=None, div_val=1, d_embed=None)

    def of_lanes(lanes: int) -> int:
        return _on_a_line(lambda n_layers: of_layers(lanes, n_layers), model.n_layers, between=(2, 3))

    def of_layers(lanes: int, n_layers: int) -> int:
        layered = dataclasses.replace(plain, n_layers=n_layers)
        return _on_a_line(lambda ids: _saved_bytes(layered, ids, train, device, lanes), width, between=(500, 1000))

    return _on_a_line(of_lanes, train.batch_size // train.accumulate, between=(2, 3))


def _on_a_line(count: Callable[[int], int], at: int, *, between: tuple[int, int]) -> int:
    """The count at a number, from those at two numbers where it is beyond them."""
    first, second = between
    if at <= second:
        return count(at)
    nearer, farther = count(first), count(second)
    return nearer + (farther - nearer) * (at - first) // (second - first)


def _saved_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings, device: torch.device, lanes: int) -> int:
    """What a step of so many lanes saves for its backward pass, beside the weights."""
    found: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        found[id(tensor.untyped_storage())] = tensor
        return tensor

    with tensors_without_data():
        stand_in = make_model(model, vocab_size).train()
        # FlexAttention, which cannot be had here, keeps no probabilities, but scores by distance, which are as many.
        stand_in.recompute(train.recompute)
        if isinstance(stand_in, TransformerXL):
            stand_in.workspace.at_once = device.type != "cpu"
            if train.attention != "flex":
                stand_in.attend_by(train.attention)
        weights = {id(parameter.untyped_storage()) for parameter in stand_in.parameters()}  # counted elsewhere
        tokens, targets = (torch.zeros(lanes, train.seg_len, dtype=torch.int64) for _ in range(2))
        casts = contextlib.nullcontext() if device.type == "cpu" else cached_casts()
        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), _precision(train), casts:
            memory = stand_in.full_memory(lanes, train.mem_len)
            stand_in.objective(tokens, targets, memory, mem_len=train.mem_len, part=train.loss_part, progress=0.0)
    return sum(tensor.untyped_storage().nbytes() for key, tensor in found.items() if key not in weights)


def _precision(train: TrainSettings) -> contextlib.AbstractContextManager[object]:
    """Products as a CPU would make them; those of fp16 take as much as those of bf16."""
    return autocast(CPU, "fp32" if train.precision == "fp32" else "bf16")
