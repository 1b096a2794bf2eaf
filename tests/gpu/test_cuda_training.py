"""Training on a CUDA device: deterministic runs, LAMB without waiting, measured steps. Skipped without a GPU."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from txlcli.config import recipe
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.measures.timing import measure
from txlcli.core.training import checkpoint
from txlcli.core.training.loop import Training
from txlcli.core.training.saving import Saver
from txlcli.core.training.segments import TrainingSegments
from txlcli.errors import TrainingError
from txlcli.workflows.training.out_of_memory import explained
from txlcli.workflows.training.plan import Plan

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

CUDA = torch.device("cuda:0")
V = 1_009
SMALL = ("model.n_layers=2", "train.batch_size=4", "train.max_steps=8", "train.valid_every=1000000")
DROPOUT = ("model.dropout=0.1", "model.attention_dropout=0.1")
CASES = {
    "auto": DROPOUT,
    "reference": (*DROPOUT, "train.attention=reference"),
    "recomputed": (*DROPOUT, "train.recompute=true"),
    "compiled": (*DROPOUT, "train.compile=on"),
    "documents": (*DROPOUT, "train.reset_at_documents=true"),
    "adaptive softmax": (*DROPOUT, "model.cutoffs=[101, 307]", "model.div_val=2"),
    "lamb": (*DROPOUT, "train.optimizer=lamb", "train.roll_lanes=true"),
}


def start(directory, *changes):
    settings = recipe.load("stdlib", [*SMALL, "train.deterministic=true", *changes])
    train = settings.train
    ids = np.random.default_rng(3).integers(V, size=train.batch_size * train.seg_len * 11 + 1)
    segments = TrainingSegments(ids, train, np.arange(0, len(ids), 97), shuffles=False)
    model = new_model(settings.model, V, seed=train.seed, device=CUDA)
    directory.mkdir(exist_ok=True)
    return Training(model, train, segments, saver=Saver(directory))


def finish(training, *, until=None):
    """Train with deterministic kernels; return the losses and the weights."""
    with deterministic_kernels(CUDA, enabled=True):
        reports = list(training.run(report_every=1, should_stop=lambda: False, until_step=until))
    weights = {name: parameter.detach().cpu() for name, parameter in training.model.named_parameters()}
    return [report.loss_nats for report in reports], weights


def assert_same(one, other):
    assert one[0] == other[0]
    assert all(torch.equal(weight, other[1][name]) for name, weight in one[1].items())


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("case", CASES)
def test_a_deterministic_training_gives_the_same_bits_when_it_is_repeated_and_resumed(tmp_path, case, precision):
    changes = (*CASES[case], f"train.precision={precision}")
    whole = finish(start(tmp_path / "whole", *changes))
    assert_same(whole, finish(start(tmp_path / "again", *changes)))
    first = finish(start(tmp_path / "parts", *changes), until=3)
    saved = checkpoint.load(tmp_path / "parts" / "last.safetensors")
    resumed = start(tmp_path / "parts", *changes)
    resumed.model.load_state_dict(saved.group("model"))
    resumed.restore(saved)
    second = finish(resumed)
    assert_same(whole, (first[0] + second[0], second[1]))


def test_steps_are_timed_without_waiting_between_them():
    matrix, done = torch.randn(4096, 4096, device=CUDA), []

    def multiply():
        torch.mm(matrix, matrix)
        done.append(torch.cuda.current_stream().query())  # True if the device has nothing left to do

    times = measure(multiply, CUDA, tokens=1, repeat=2, steps=10)
    assert 0 < times.median < 1000
    assert not all(done)


def test_a_training_that_needs_more_than_the_card_has_names_what_would_fit():
    total = torch.cuda.get_device_properties(CUDA).total_memory
    settings = recipe.load("stdlib", ["train.batch_size=4096", "train.seg_len=64"])
    plan = Plan(run=SimpleNamespace(settings=settings, vocab_size=V), device=CUDA)
    with pytest.raises(TrainingError) as caught, explained(plan):
        torch.empty(2 * total, dtype=torch.uint8, device=CUDA)
    assert re.search(r"^out of memory \(tried to allocate [\d.]+ GiB\); .*a step needs about ", str(caught.value))
