"""Training with a CUDA graph equals training without one, bit for bit.

A stand-in for CUDA graphs replays operations on the same memory (tests/core/tape.py). Real capture needs a GPU.
"""

import numpy as np
import pytest
import torch

from tests.core import tape
from tests.core.builders import V, draw_tokens, model_settings
from txlcli.config.settings import TrainSettings
from txlcli.core.model.compressive import CompressiveTransformer
from txlcli.core.model.rmt import RecurrentMemoryTransformer
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.step import capture_step

CPU = torch.device("cpu")
LANES, LANE_LEN, L, M = 3, 38, 5, 7  # an epoch: memories of 0 and 5, then six whole segments, then a shorter one
MODELS = {
    "relative": {"dropout": 0.2, "attention_dropout": 0.2, "word_dropout": 0.2},
    "variational": {"dropout": 0.2, "variational_dropout": True, "tie_biases": False},
    "shaw": {"position": "shaw", "n_positions": 6, "norm": "pre"},
    "sinusoid": {"position": "sinusoid"},
    "learned": {"position": "learned", "n_positions": L},
    "memory of zeros": {"memory_start": "zeros"},
    "window": {"window": 4},
    "memory of outputs": {"memory_source": "layer_output"},
    "compressive": {"arch": "compressive", "compressed_len": 2, "compression_rate": 5, "dropout": 0.2},
    "memory tokens": {"arch": "rmt", "segment_len": L, "n_memory_tokens": 2, "dropout": 0.2},
    "gated": {"gating": "gru", "norm": "pre", "dropout": 0.2},
    "modern": {"block": "modern", "norm": "pre", "dropout": 0.2},
}


class GradientsAsOnCuda:
    """The part of a model that does not keep the memory of dropped gradients for the next step."""

    def forget_gradients(self):
        self.zero_grad(set_to_none=True)


class ModelAsOnCuda(GradientsAsOnCuda, TransformerXL):
    """Transformer-XL as on CUDA."""


class CompressiveAsOnCuda(GradientsAsOnCuda, CompressiveTransformer):
    """The Compressive Transformer as on CUDA."""


class RmtAsOnCuda(GradientsAsOnCuda, RecurrentMemoryTransformer):
    """The Recurrent Memory Transformer as on CUDA."""


AS_ON_CUDA = {"transformer": ModelAsOnCuda, "compressive": CompressiveAsOnCuda, "rmt": RmtAsOnCuda}


def trained(model_changes, *, steps=20, capture_graph=capture_step, **changed):
    """Return losses and gradient norms of the steps, and the weights and memory after them."""
    settings = TrainSettings(
        **{"seg_len": L, "mem_len": M, "batch_size": LANES, "max_steps": steps, "lr": 0.01, "clip": 0.5, **changed}
    )
    torch.manual_seed(1)
    model = AS_ON_CUDA[model_changes.get("arch", "transformer")](model_settings(**model_changes), V)
    ids = draw_tokens(1, LANES * LANE_LEN + 1, seed=2)[0].numpy().astype(np.uint8)
    segments = TrainingSegments(ids, batch_size=LANES, seg_len=settings.seg_len)
    training = Training(model, settings, segments, capture_graph=capture_graph)
    model.embedding.gradient_of_rows = False  # as on CUDA
    numbers = [[float(number) for number in training.update()[:2]] for _ in range(steps)]
    return numbers, [*model.parameters(), *training.memories[0]]


def assert_a_graph_trains_the_same(model_changes, **changed):
    captured = []

    def capture_graph(run, device):
        captured.append(device)
        return tape.capture(run, device)

    numbers, tensors = trained(model_changes, **changed)
    with_graph, tensors_with_graph = trained(model_changes, cuda_graph=True, capture_graph=capture_graph, **changed)
    assert captured == [CPU]
    assert with_graph == numbers
    assert all(torch.equal(one, other) for one, other in zip(tensors, tensors_with_graph, strict=True))


@pytest.mark.parametrize("changes", MODELS.values(), ids=MODELS)
def test_a_replayed_graph_trains_the_same(changes):
    assert_a_graph_trains_the_same(changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"precision": "bf16"},
        {"mem_len": 0},
        {"loss_part": "half", "seg_len": 4},
        {"attention": "reference"},
        {"average": "exponential", "optimizer": "sgd", "momentum": 0.9, "weight_decay": 0.1},
        {"clip": None, "schedule": "inverse_sqrt", "warmup_steps": 3},
        {"optimizer": "muon", "weight_decay": 0.1},
    ],
    ids=str,
)
def test_a_replayed_graph_trains_the_same_with_other_settings(changes):
    assert_a_graph_trains_the_same(MODELS["relative"], **changes)


def test_without_a_cuda_graph_nothing_is_captured():
    captured = []

    def capture_graph(run, device):
        captured.append(device)
        return tape.capture(run, device)

    trained(MODELS["relative"], capture_graph=capture_graph)
    assert captured == []


def test_if_capture_is_not_possible_training_is_the_same():
    numbers, tensors = trained(MODELS["relative"])
    again, tensors_again = trained(MODELS["relative"], cuda_graph=True)  # a CPU has no CUDA graphs
    assert again == numbers
    assert all(torch.equal(one, other) for one, other in zip(tensors, tensors_again, strict=True))
