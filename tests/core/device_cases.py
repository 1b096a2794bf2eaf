"""Models that train and read on a device without numbers, and what no operation may do there.

Recipes are cut down to two layers; the case with an adaptive softmax has WikiText-103's vocabulary.
"""

from dataclasses import replace

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import arg_tree_leaves

from txlcli.config import recipe
from txlcli.core.architectures.registry import make_model
from txlcli.core.reading.registry import make_reader
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

COPIES = {"aten::copy_", "aten::_to_copy"}  # they may lead from one device to another
EVERY_DROPOUT = ("model.dropout=0.1", "model.attention_dropout=0.1", "model.word_dropout=0.1")
COMPRESSIVE = ("model.arch=compressive", "model.compressed_len=32", "model.compression_rate=4")
MEMORY_TOKENS = ("model.arch=rmt", "model.segment_len=4", "train.mem_len=0", "eval.mem_len=0")
CASES = {
    "relative": ("stdlib",),
    "attention written out": ("stdlib", *EVERY_DROPOUT, "train.attention=reference"),
    "recomputed": ("stdlib", *EVERY_DROPOUT, "train.recompute=true"),
    "half loss": ("stdlib", "train.loss_part=half", "train.mem_len=0"),
    "regularised": ("ptb-memory",),
    "averaged": ("stdlib", *EVERY_DROPOUT, "model.variational_dropout=true", "train.average=exponential"),
    "accumulated": ("stdlib", "train.accumulate=2"),
    "lamb": ("stdlib", "train.optimizer=lamb", "train.roll_lanes=true"),
    "shaw": ("stdlib", "model.position=shaw", "model.n_positions=128"),
    "relative_tied": ("stdlib", "model.position=relative_tied"),
    "sinusoid": ("stdlib", "model.position=sinusoid"),
    "learned": ("stdlib", "model.position=learned", "model.n_positions=128"),
    "rotary": ("stdlib", "model.position=rotary"),
    "alibi": ("stdlib", "model.position=alibi"),
    "t5": ("stdlib", "model.position=t5"),
    "no positions": ("stdlib", "model.position=none"),
    "vanilla": ("vanilla-stdlib",),
    "modern": ("stdlib", *EVERY_DROPOUT, "model.block=modern", "model.norm=pre", "model.window=40"),
    "gated": ("stdlib", *EVERY_DROPOUT, "model.gating=gru", "model.norm=pre"),
    "compressive": ("stdlib", *COMPRESSIVE, "eval.same_length=off"),
    "memory tokens": ("stdlib", *MEMORY_TOKENS, "eval.same_length=off"),
    "lstm": ("lstm-ptb",),
    "qrnn": ("qrnn-ptb",),
    "adaptive softmax": ("wt103", "model.n_heads=2"),
    "muon": ("stdlib", "train.optimizer=muon"),
    "recomputed layers": ("ptb-memory", "train.recompute=layers", "train.average=none"),
}
PRECISIONS = ("fp32", "bf16", "fp16")
"""Precisions that differ in the dtypes of tensors; tf32 has those of fp32."""
EVERY_PRECISION = [(case, precision) for case in CASES for precision in PRECISIONS]
READ_LIKE_RELATIVE = {
    "recomputed",
    "recomputed layers",
    "half loss",
    "regularised",
    "averaged",
    "accumulated",
    "lamb",
    "muon",
}
"""They differ in training only."""
VOCAB_SIZES = {"adaptive softmax": 267_735}


def one_precision_each(first):
    """Pair each case with one precision, in turn; the first case gets the precision of this index."""
    return [(case, PRECISIONS[(first + number) % len(PRECISIONS)]) for number, case in enumerate(CASES)]


def that_read_differently(pairs):
    """Leave out the cases that differ from others in training only."""
    return [pair for pair in pairs if pair[0] not in READ_LIKE_RELATIVE]


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices; single numbers may come from the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in arg_tree_leaves(*args, **kwargs) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        assert len(devices) <= 1 or func._schema.name in COPIES, f"{func} mixes {devices}"
        return func(*args, **kwargs)


def load(case, *changes):
    name, *others = CASES[case]
    return recipe.load(name, ["model.n_layers=2", *others, "train.batch_size=4", *changes])


def build(case, settings, device):
    with device:
        model = make_model(settings.model, VOCAB_SIZES.get(case, 10_000))
    model = model.on(attention=settings.train.attention)
    return model


def start(settings, model, **more):
    """A training of it on a text of ids that lie in all bands."""
    ids = np.arange(4 * 10 * settings.train.seg_len) * 257 % model.vocab_size
    starts = np.arange(0, len(ids), 97) if settings.train.reset_at_documents else None
    segments = TrainingSegments(ids, settings.train, starts, shuffles=False)
    return Training(model, settings.train, segments, **more)


def read(settings, model, *, precision="fp32"):
    """As many segments as fill the memory and let the buffer slide, then one token: the reader, its hidden state."""
    evaluation = settings.eval
    reader = make_reader(model.on(precision=precision), replace(evaluation, batch_size=4))
    tokens, targets = (
        torch.zeros(4, evaluation.seg_len, dtype=torch.long, device=device)
        for device in (model.device, model.targets_device)
    )
    for _ in range((evaluation.mem_len + reader.housekeeping_interval) // evaluation.seg_len + 1):
        reader.losses(reader.read(tokens), targets)
    return reader, reader.read_last(tokens[:, :1])[0]
