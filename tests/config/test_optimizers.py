"""The table of optimizers, and an optimizer that is registered from outside the package."""

import pytest

from txlcli.config.optimizers import OPTIMIZERS, OptimizerTraits, register_optimizer
from txlcli.config.recipe import section
from txlcli.errors import RecipeError

SIZES = {"seg_len": 5, "mem_len": 7, "batch_size": 3, "max_steps": 11}


@pytest.fixture
def register():
    before = dict(OPTIMIZERS)
    yield register_optimizer
    OPTIMIZERS.clear()
    OPTIMIZERS.update(before)


def test_a_registered_optimizer_is_accepted(register):
    with pytest.raises(RecipeError, match="optimizer must be one of adam, adamw, lamb, muon, sgd, not 'lion'"):
        section("train", {**SIZES, "optimizer": "lion"})
    register("lion", OptimizerTraits(settings=frozenset({"momentum"})))
    assert section("train", {**SIZES, "optimizer": "lion", "momentum": 0.5}).momentum == 0.5
    with pytest.raises(RecipeError, match='momentum must be left out unless optimizer = "muon" or "sgd" or "lion"'):
        section("train", {**SIZES, "momentum": 0.5})
    with pytest.raises(RecipeError, match=r'weight_decay must be left out unless optimizer = "adam" or "adamw" or "la'):
        section("train", {**SIZES, "optimizer": "lion", "weight_decay": 0.1})


def test_a_name_is_registered_once(register):
    with pytest.raises(ValueError, match='"sgd" is registered already'):
        register("sgd", OptimizerTraits())
