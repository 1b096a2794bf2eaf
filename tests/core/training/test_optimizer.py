"""Optimizers against their update rules and against PyTorch's, from parameter groups to resumed runs."""

import math

import pytest
import torch
from torch import nn

from txlcli.config.settings import TrainSettings
from txlcli.core.training.optimizer import make_optimizer


def train_settings(**changed):
    return TrainSettings(**{"seg_len": 5, "mem_len": 7, "batch_size": 2, "max_steps": 100, "lr": 0.8, **changed})


def updates(gradients, **changed):
    """A weight that starts at 1 after each of these gradients, at the rate 0.8."""
    module = nn.Linear(1, 1, bias=False)
    nn.init.ones_(module.weight)
    optimizer = make_optimizer(module, train_settings(**changed))
    given = []
    for gradient in gradients:
        module.weight.grad = torch.full((1, 1), float(gradient))
        optimizer.step()
        given.append(module.weight.item())
    return given


def test_sgd_steps_down_the_gradient():
    assert updates([1, 0.5], optimizer="sgd") == pytest.approx([0.2, -0.2])


def test_sgd_with_momentum():
    # Velocities 1 and 0.5 x 1 + 1 = 1.5.
    assert updates([1, 1], optimizer="sgd", momentum=0.5) == pytest.approx([0.2, -1.0])


def test_weight_decay_is_added_to_the_gradient():
    # 0.25 + 0.5 x 1 = 0.75.
    assert updates([0.25], optimizer="sgd", weight_decay=0.5) == pytest.approx([0.4])


def test_adam_has_betas_0_9_and_0_999():
    # m = 0.1, v = 0.001, both corrected to 1; then m = 0.09 - 0.3 over 1 - 0.81, v = 0.000999 + 0.009 over 1 - 0.999^2.
    second = 0.8 * (-0.21 / 0.19) / math.sqrt(0.009999 / (1 - 0.999**2))
    assert updates([1, -3], optimizer="adam") == pytest.approx([0.2, 0.2 - second], rel=1e-5)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_every_parameter_is_learned(optimizer):
    module = nn.Sequential(nn.Linear(2, 3), nn.LayerNorm(3))
    groups = make_optimizer(module, train_settings(optimizer=optimizer)).param_groups
    assert {id(p) for group in groups for p in group["params"]} == {id(p) for p in module.parameters()}
