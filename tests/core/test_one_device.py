"""A training step and the reading of a segment stay on the model's device and never wait for its numbers.

The meta device stands for an accelerator: it knows shapes and no numbers, so that whoever asks for one fails, and an
operation on tensors of two devices is refused here. Number formats and random numbers it cannot show.
"""

import contextlib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from txlcli import recipe
from txlcli.core.architectures import make_reader
from txlcli.core.segments import TrainingSegments
from txlcli.core.training import Training, new_model

META = torch.device("meta")
COPIES = {"aten::copy_", "aten::_to_copy"}  # they may lead from one device to another
EVERY_DROPOUT = ("model.dropout=0.1", "model.attention_dropout=0.1", "model.word_dropout=0.1")
CASES = {
    "relative": ("stdlib",),
    "attention written out": ("stdlib", *EVERY_DROPOUT, "train.attention=reference"),
    "fused attention": ("stdlib", *EVERY_DROPOUT, "train.attention=sdpa"),
    "recomputed": ("stdlib", *EVERY_DROPOUT, "train.recompute=true"),
    "half loss": ("stdlib", "train.loss_part=half", "train.mem_len=0"),
    "regularised": ("ptb", "model.n_layers=2"),
    "averaged": ("stdlib", *EVERY_DROPOUT, "model.variational_dropout=true", "train.average=exponential"),
    "accumulated": ("stdlib", "train.accumulate=2"),
    "shaw": ("stdlib", "model.position=shaw", "model.n_positions=128"),
    "sinusoid": ("stdlib", "model.position=sinusoid"),
    "learned": ("stdlib", "model.position=learned", "model.n_positions=128"),
    "vanilla": ("vanilla-stdlib",),
    "lstm": ("lstm-ptb",),
    "qrnn": ("qrnn-ptb",),
}
ADAPTIVE = ("wt103", "model.n_layers=2", "model.n_heads=2")


class OneDevice(TorchDispatchMode):
    """Refuses operations on tensors of two devices; single numbers may come from the CPU."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        """Look at the operation, then do it."""
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        devices = {tensor.device.type for tensor in tensors if tensor.dim()}
        assert len(devices) <= 1 or func._schema.name in COPIES, f"{func} mixes {devices}"
        return func(*args, **kwargs)


@pytest.fixture(autouse=True)
def no_autocast(monkeypatch):
    """The meta device has none."""
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: contextlib.nullcontext())


def train(name, *changes, vocab_size):
    """Two steps of a recipe."""
    settings = recipe.load(name, [*changes, "train.batch_size=4"])
    model = new_model(settings.model, vocab_size, seed=1, device=META)
    ids = np.zeros(4 * 10 * settings.train.seg_len, dtype=np.int64)
    segments = TrainingSegments(ids, lanes=4, seg_len=settings.train.seg_len)
    with OneDevice():
        training = Training(model, settings.train, segments, valid=None, folder=Path(), identity={})
        for group in training.optimizer.param_groups:
            group["fused"] = None  # there is no fused step for it
        for _ in range(2):
            training.update()
    return settings, model


def read(settings, model):
    """As many segments as fill the memory and let the buffer slide, then one token."""
    how = settings.eval
    with OneDevice():
        reader = make_reader(
            model,
            lanes=4,
            mem_len=how.mem_len,
            seg_len=how.seg_len,
            same_length=how.same_length,
            max_distance=how.max_distance,
            precision="fp32",
        )
        tokens = torch.zeros(4, how.seg_len, dtype=torch.long, device=META)
        for _ in range(2 * (how.mem_len + reader.housekeeping_interval) // how.seg_len + 1):
            reader.losses(reader.read(tokens), tokens)
        return reader, reader.read_last(tokens[:, :1])[0]


@pytest.mark.parametrize("case", CASES)
def test_training_and_reading_never_leave_the_device_or_wait_for_it(case):
    reader, hidden = read(*train(*CASES[case], vocab_size=10_000))
    found = reader.likeliest(hidden, 5)
    assert {tensor.device for tensor in (hidden, *found)} == {META}


def test_the_adaptive_softmax_asks_only_which_tokens_lie_in_a_band(monkeypatch):
    monkeypatch.setattr("torch.fx.experimental._config.meta_nonzero_assume_all_nonzero", True)
    _, hidden = read(*train(*ADAPTIVE, vocab_size=267_735))
    assert hidden.device == META


def test_two_devices_are_noticed():
    with OneDevice(), pytest.raises(AssertionError, match="mixes"):
        torch.zeros(3, device=META)[torch.arange(2)]


def test_a_number_that_is_asked_for_is_noticed():
    with pytest.raises((NotImplementedError, RuntimeError)):
        float(torch.zeros((), device=META))
