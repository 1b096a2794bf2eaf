"""Every packaged recipe trains: narrow, but with its own depth, dropout, loss, schedule and optimizer."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from tests.samples import sampled
from txlcli.config import recipe
from txlcli.core.architectures.registry import new_model
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments

V, STEPS, LANES = 37, 3, 12
CUTOFFS = (11, 24, 31)
OWN = {"compressive": {"compressed_len": 5}, "rmt": {"segment_len": 4}}
"""Lengths of other memories."""


def narrow(model):
    """Return the same model with a small vocabulary and few channels."""
    sizes = {"d_model": 16, "d_embed": None, "cutoffs": CUTOFFS[: len(model.cutoffs)], "div_val": min(model.div_val, 2)}
    if model.has_attention:
        sizes |= {"n_heads": 2, "d_head": 8, "d_inner": 24} | OWN.get(model.arch, {})
    elif model.d_hidden:
        sizes |= {"d_hidden": 24}
    return dataclasses.replace(model, **sizes)


def training_of(name, precision):
    settings = recipe.load(name)
    sizes = {"seg_len": 8, "mem_len": min(settings.train.mem_len, 8), "valid_seg_len": None, "batch_size": LANES}
    train = dataclasses.replace(settings.train, **sizes, warmup_steps=0, precision=precision)
    model = new_model(narrow(settings.model), V, seed=1, device=torch.device("cpu"))
    ids = np.random.default_rng(5).integers(V, size=LANES * 8 * (STEPS + 2))
    return Training(model, train, TrainingSegments(ids, train))


@pytest.mark.parametrize(("precision", "name"), sampled(3, ["fp32", "bf16"], recipe.packaged_names()))
def test_the_first_steps_of_a_recipe_are_finite_and_change_every_weight(name, precision):
    training = training_of(name, precision)
    before = {name: weight.clone() for name, weight in training.model.named_parameters()}
    for _ in range(STEPS):
        result = training.update()
        assert 0 < result.loss.item() < 3 * math.log(V)
        assert 0 < result.grad_norm.item() < 1e8  # large where first words are dropped: norms of tiny vectors
    unchanged = [name for name, weight in training.model.named_parameters() if torch.equal(weight, before[name])]
    assert unchanged == []
