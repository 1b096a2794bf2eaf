"""The table of encodings, and an encoding that is registered from outside the package."""

import pytest

from txlcli.config.encodings import ENCODINGS, EncodingTraits, register_encoding
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.recipe import section
from txlcli.errors import RecipeError

SHAPE = {"n_layers": 2, "d_model": 6, "n_heads": 3, "d_head": 5, "d_inner": 7}


def reject_one_layer(settings):
    if settings.n_layers == 1:
        raise RecipeError("[model] n_layers must be 2 or more with rings, not 1")


@pytest.fixture
def register():
    before = dict(ENCODINGS)
    yield register_encoding
    ENCODINGS.clear()
    ENCODINGS.update(before)


def test_a_registered_encoding_is_accepted_as_position(register):
    with pytest.raises(
        RecipeError,
        match="position must be one of relative, relative_tied, shaw, sinusoid, learned, rotary, alibi, t5, none, not ",
    ):
        section("model", {**SHAPE, "position": "rings"})
    register("rings", EncodingTraits(absolute_positions=True, learned_vectors=True, check=reject_one_layer))
    settings = section("model", {**SHAPE, "position": "rings", "n_positions": 11})
    assert settings.longest_window == 11
    assert settings.absolute_positions
    assert not settings.limits_distance
    assert not settings.is_transformer_xl
    with pytest.raises(RecipeError, match="rotary, alibi, t5, none, rings, not 'ring'; did you mean \"rings\""):
        section("model", {**SHAPE, "position": "ring"})


def test_the_requirements_of_an_encoding_and_of_its_traits_are_checked(register):
    register("rings", EncodingTraits(learned_vectors=True, has_biases=True, check=reject_one_layer))
    with pytest.raises(RecipeError, match="n_layers must be 2 or more with rings"):
        TransformerSettings(**SHAPE | {"n_layers": 1}, position="rings", n_positions=3)
    with pytest.raises(RecipeError, match="n_positions must be"):
        TransformerSettings(**SHAPE, position="rings")
    assert not TransformerSettings(**SHAPE, position="rings", n_positions=3, tie_biases=False).tie_biases
    with pytest.raises(RecipeError, match='tie_biases must be left out unless position = "relative" or "rings"'):
        TransformerSettings(**SHAPE, position="sinusoid", tie_biases=False)


def test_a_name_is_registered_once(register):
    with pytest.raises(ValueError, match='"shaw" is registered already'):
        register("shaw", EncodingTraits())


def test_rotary_rejects_an_odd_head_width():
    with pytest.raises(RecipeError, match='\\[model\\] d_head must be even with position = "rotary", not 5'):
        TransformerSettings(**SHAPE, position="rotary")
    assert TransformerSettings(**SHAPE | {"d_head": 4}, position="rotary").encoding.score_terms == ()
