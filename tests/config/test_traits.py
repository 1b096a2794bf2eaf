"""Encodings and optimizers that are registered from outside the package."""

import pytest

from tests.extensions import restored_tables
from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.recipe import read_section
from txlcli.config.traits import ENCODING_TRAITS, OPTIMIZERS, EncodingTraits, register
from txlcli.errors import IMPORT_PACKAGE, RecipeError

SHAPE = {"n_layers": 2, "d_model": 6, "n_heads": 3, "d_head": 5, "d_inner": 7}


def reject_one_layer(settings):
    if settings.n_layers == 1:
        raise RecipeError("[model] n_layers must be 2 or more with rings, not 1")


@pytest.fixture(autouse=True)
def _restored_tables():
    with restored_tables():
        yield


def test_a_registered_encoding_is_accepted_as_position():
    with pytest.raises(RecipeError, match=f"position must be one of relative, .*{IMPORT_PACKAGE}"):
        read_section("model", {**SHAPE, "position": "rings"})
    register(
        ENCODING_TRAITS, "rings", EncodingTraits(absolute_positions=True, learned_vectors=True, check=reject_one_layer)
    )
    settings = read_section("model", {**SHAPE, "position": "rings", "n_positions": 11})
    assert settings.longest_window == 11
    assert settings.absolute_positions
    assert not settings.limits_distance
    with pytest.raises(RecipeError, match=r"rotary, alibi, t5, none, rings, not 'ring'; did you mean .rings"):
        read_section("model", {**SHAPE, "position": "ring"})


def test_the_requirements_of_an_encoding_and_of_its_traits_are_checked():
    register(ENCODING_TRAITS, "rings", EncodingTraits(learned_vectors=True, has_biases=True, check=reject_one_layer))
    with pytest.raises(RecipeError, match="n_layers must be 2 or more with rings"):
        TransformerSettings(**SHAPE | {"n_layers": 1}, position="rings", n_positions=3)
    with pytest.raises(RecipeError, match="n_positions must be"):
        TransformerSettings(**SHAPE, position="rings")
    assert not TransformerSettings(**SHAPE, position="rings", n_positions=3, tie_biases=False).tie_biases
    with pytest.raises(RecipeError, match='tie_biases must be left out with position = "sinusoid"'):
        TransformerSettings(**SHAPE, position="sinusoid", tie_biases=False)


def test_a_setting_that_must_be_left_out_may_be_none_if_that_is_its_default():
    with pytest.raises(RecipeError, match=r'max_distance must be left out \(or "none"\) with position = "rotary"'):
        recipe.load("enwik8", ["model.position=rotary"])
    assert recipe.load("enwik8", ["model.position=rotary", "eval.max_distance=none"]).eval.max_distance is None


def test_a_name_is_registered_once():
    with pytest.raises(ValueError, match='"shaw" is registered already'):
        register(ENCODING_TRAITS, "shaw", EncodingTraits())


def test_a_registered_optimizer_is_accepted():
    sizes = {"seg_len": 5, "mem_len": 7, "batch_size": 3, "max_steps": 11}
    with pytest.raises(RecipeError, match=f"optimizer must be one of .* not 'lion'.*{IMPORT_PACKAGE}"):
        read_section("train", {**sizes, "optimizer": "lion"})
    register(OPTIMIZERS, "lion", frozenset({"momentum"}))
    assert read_section("train", {**sizes, "optimizer": "lion", "momentum": 0.5}).momentum == 0.5
    with pytest.raises(RecipeError, match='momentum must be left out unless optimizer = "muon" or "sgd" or "lion"'):
        read_section("train", {**sizes, "momentum": 0.5})
    with pytest.raises(RecipeError, match='weight_decay must be left out unless optimizer = "adam"'):
        read_section("train", {**sizes, "optimizer": "lion", "weight_decay": 0.1})
