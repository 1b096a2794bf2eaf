"""Memory of a GPU that shares a batch, and the exchange of gradients."""

import pytest
import torch

from tests.core.builders import V, model_settings
from tests.samples import sampled
from txlcli.config.train_settings import TrainSettings
from txlcli.core.measures.forecast import step_bytes
from txlcli.core.training.distributed import of_one_process
from txlcli.workflows.training.forecast import device_bytes

L, M = 5, 7


def train_settings(**changed):
    return TrainSettings(**{"seg_len": L, "mem_len": M, "batch_size": 28, "max_steps": 1, **changed})


@pytest.mark.parametrize(
    ("part", "recompute"),
    sampled(2, [({}, 1), ({}, 4), ({"accumulate": 2}, 3), ({"average": "exponential"}, 28)], [False, True]),
)
def test_a_gpu_needs_what_a_step_of_its_part_of_the_batch_needs(part, recompute):
    changed, devices = part
    train = train_settings(recompute=recompute, **changed)
    needed = device_bytes(model_settings(), V, train, devices)
    of_one = of_one_process(train, devices)
    expected = step_bytes(model_settings(), V, of_one, device=torch.device("cuda"), processes=devices)
    assert sum(needed.values()) - needed["total"] == needed["total"] == expected.total
    assert needed["parameters"] == expected.weights
    assert needed["activations"] + needed["logits"] == expected.activations
