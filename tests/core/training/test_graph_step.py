"""A training that repeats a recording of its steps equals one that takes them, bit for bit.

The recording is made by a stand-in for CUDA graphs that repeats operations on the same memory (tests/core/tape.py).
That CUDA can record them is for a GPU to show.
"""

import numpy as np
import pytest
import torch

from tests.core import tape
from tests.core.builders import V, draw_tokens, model_settings
from txlcli.config.settings import TrainSettings
from txlcli.core.model.base import LanguageModel
from txlcli.core.training import graph_step
from txlcli.core.training.loop import Training, new_model
from txlcli.core.training.segments import TrainingSegments

CPU = torch.device("cpu")
LANES, LANE_LEN, L, M = 3, 38, 5, 7  # an epoch: memories of 0 and 5, then six whole segments, then a shorter one
MODELS = {
    "relative": {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.2},
    "variational": {"dropout": 0.2, "variational_dropout": True, "tie_biases": False},
    "shaw": {"position": "shaw", "n_positions": 6, "norm": "pre"},
    "sinusoid": {"position": "sinusoid"},
    "learned": {"position": "learned", "n_positions": L},
    "memory of zeros": {"memory_start": "zeros"},
}


def trained(model_changes, *, steps=20, **changed):
    """Losses and gradient norms of the steps, and the weights and memory after them."""
    settings = TrainSettings(
        **{"seg_len": L, "mem_len": M, "batch_size": LANES, "max_steps": steps, "lr": 0.01, "clip": 0.5, **changed}
    )
    model = new_model(model_settings(**model_changes), V, seed=1, device=CPU)
    ids = draw_tokens(1, LANES * LANE_LEN + 1, seed=2)[0].numpy().astype(np.uint8)
    segments = TrainingSegments(ids, batch_size=LANES, seg_len=settings.seg_len)
    training = Training(model, settings, segments, valid=None, folder=None, identity={})
    model.embedding.gradient_of_rows = False  # as on CUDA
    told = [[float(number) for number in training.update()[:2]] for _ in range(steps)]
    return told, [*model.parameters(), *training.memories[0]]


@pytest.fixture(autouse=True)
def gradients_are_forgotten_as_on_cuda(monkeypatch):
    """Whose memory is not kept for the next step."""
    monkeypatch.setattr(LanguageModel, "forget_gradients", lambda model: model.zero_grad(set_to_none=True))


@pytest.fixture
def recordings(monkeypatch):
    """Counts what is recorded."""
    made = []

    def recorded(run, device):
        made.append(device)
        return tape.recorded(run, device)

    monkeypatch.setattr(graph_step, "recorded", recorded)
    return made


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_repeating_a_recording_trains_the_same(recordings, changes):
    told, tensors = trained(changes)
    assert not recordings
    told_again, tensors_again = trained(changes, cuda_graph=True)
    assert len(recordings) == 1
    assert told_again == told
    assert all(torch.equal(one, other) for one, other in zip(tensors, tensors_again, strict=True))


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"mem_len": 0},
        {"loss_part": "half", "seg_len": 4},
        {"attention": "reference"},
        {"attention": "sdpa"},
        {"average": "exponential", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
        {"clip": None, "schedule": "inverse_sqrt", "warmup_steps": 3},
    ],
    ids=str,
)
def test_repeating_a_recording_trains_the_same_with_every_kind_of_step(recordings, changes):
    told, tensors = trained(MODELS["relative"], **changes)
    told_again, tensors_again = trained(MODELS["relative"], cuda_graph=True, **changes)
    assert len(recordings) == 1
    assert told_again == told
    assert all(torch.equal(one, other) for one, other in zip(tensors, tensors_again, strict=True))


def test_where_nothing_can_be_recorded_training_is_the_same():
    told, tensors = trained(MODELS["relative"])
    told_again, tensors_again = trained(MODELS["relative"], cuda_graph=True)  # a CPU records nothing
    assert told_again == told
    assert all(torch.equal(one, other) for one, other in zip(tensors, tensors_again, strict=True))
