"""Memory of a training step beside weights, optimizer state, memory and activations, counted on tensors without data.

Axes: B batch, L segment, M memory, N layers.
"""

import dataclasses
import functools
import gc

import torch
from torch import Tensor

from txlcli.config.model_settings import ModelSettings, RnnSettings, TransformerSettings
from txlcli.config.settings import TrainSettings
from txlcli.core.kernels.attention_tiles import first_tiles_only
from txlcli.core.kernels.device import DTYPES, autocast
from txlcli.core.measures.extrapolation import SMALL_WIDTH
from txlcli.core.measures.live_bytes import LiveBytes, counting
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.registry import make_model
from txlcli.core.training.data_parallel import SINGLE_PROCESS
from txlcli.core.training.parallel_ddp import DataParallel
from txlcli.core.training.step import ForwardBackward, OptimizerStep

COUNTED_TOKENS = 1 << 14
"""Most tokens of a micro-batch to count with; more take memory in proportion."""
COUNTED_LENGTH = 1024
"""Longest segment and memory to count with, in tokens; longer ones take memory in proportion."""
COUNTED_LOGITS = 1 << 24
"""Most logits to count with, unless a softmax of SMALL_WIDTH has more: they are computed in blocks of few columns."""
LSTM_NUMBERS = 6
"""Numbers that oneDNN's LSTM keeps for the backward pass for each token and unit: four gates, cell, output."""


def backward_bytes(model: ModelSettings, vocab_size: int, train: TrainSettings) -> int:
    """Return the bytes of gradients and temporary tensors at the peak of forward and backward pass on a CPU.

    Counted with one layer, on whose number they do not depend.

    Args:
        model: settings of the model, with a plain softmax.
        vocab_size: columns of the softmax.
        train: settings of the training of one process.
    """
    least = 1 if isinstance(model, TransformerSettings) else 2  # the last recurrent layer has another width
    small = dataclasses.replace(model, n_layers=min(least, model.n_layers))
    batch_size = train.batch_size // train.accumulate
    seg_len, mem_len = (min(length, COUNTED_LENGTH) for length in (train.seg_len, train.mem_len))
    sequences = min(batch_size, COUNTED_TOKENS // seg_len)
    columns = min(vocab_size, max(SMALL_WIDTH, COUNTED_LOGITS // (sequences * seg_len)))
    counted = _counted(small, columns, _counted_alike(train, batch_size=sequences, seg_len=seg_len, mem_len=mem_len))
    keys = batch_size * (train.seg_len + train.mem_len)
    return counted * keys // (sequences * (seg_len + mem_len)) + _lstm_bytes(model, train)


def _counted_alike(train: TrainSettings, *, batch_size: int, seg_len: int, mem_len: int) -> TrainSettings:
    """Return settings of one micro-batch on a CPU; trainings that are counted alike have equal ones."""
    return TrainSettings(
        batch_size=batch_size,
        seg_len=seg_len,
        mem_len=mem_len,
        max_steps=1,
        optimizer="sgd",
        precision="fp32" if DTYPES[train.precision] == torch.float32 else "bf16",
        loss_part=train.loss_part,
        recompute=train.recompute,
        attention="auto" if train.attention in ("flex", "triton") else train.attention,
    )


@functools.lru_cache(maxsize=256)
def _counted(model: ModelSettings, vocab_size: int, train: TrainSettings) -> int:
    """Return the bytes at the peak of a forward and backward pass beyond weights, memory and activations."""
    live, saved = LiveBytes(), LiveBytes()

    def keep(tensor: Tensor) -> Tensor:
        if id(tensor.untyped_storage()) not in weights:
            saved.observe(tensor)
        return tensor

    with (
        counting(live),
        first_tiles_only(),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        network = make_model(model, vocab_size).train()
        network.recompute(train.recompute)
        if train.attention != "auto":
            network.set_attention_backend(train.attention)
        weights = {id(weight.untyped_storage()): weight.nbytes for weight in network.parameters()}
        with autocast(torch.device("cpu"), train.precision):  # which gives the memory its dtype
            memory = network.full_memory(train.batch_size, train.mem_len)
        forward_backward = _make_pass(network, train)
        tokens, targets = (torch.zeros(train.batch_size, train.seg_len, dtype=torch.int64) for _ in range(2))
        gc.collect()  # tensors in reference cycles would count
        live.peak = live.now
        held = sum(weights.values()) + sum(tensor.untyped_storage().nbytes() for tensor in memory)
        forward_backward(tokens, targets, memory, progress=0.0)
    return max(0, live.peak - held - saved.peak)


def _make_pass(network: LanguageModel, train: TrainSettings) -> ForwardBackward:
    """Return the forward and backward pass of a training, without optimizer state."""
    parallel = DataParallel(network, train, SINGLE_PROCESS)
    return ForwardBackward(network, train, parallel.objective, OptimizerStep(network, train, parallel), processes=1)


def _lstm_bytes(model: ModelSettings, train: TrainSettings) -> int:
    if not isinstance(model, RnnSettings) or model.arch != "lstm":
        return 0
    tokens = train.batch_size // train.accumulate * train.seg_len
    return LSTM_NUMBERS * DTYPES[train.precision].itemsize * tokens * sum(model.widths)
