"""The bands of a vocabulary: edges, widths, projections."""

import shlex

import pytest

from tests.core.builders import model_settings
from txlcli.config import recipe
from txlcli.config.bands import Band, bands, plain_softmax_overrides
from txlcli.errors import RecipeError

V, CUTOFFS = 19, (5, 11)  # bands of 5, 6 and 8 ids


def make_bands(vocab_size=V, **changed):
    return bands(model_settings(**{"cutoffs": CUTOFFS, **changed}), vocab_size)


@pytest.mark.parametrize(
    ("changed", "widths", "projections", "shared"),
    [
        ({}, [14, 14, 14], [None] * 3, [False, True, True]),
        ({"div_val": 4, "d_embed": 32}, [32, 8, 2], [0, 1, 2], [False, True, True]),
        ({"div_val": 2}, [14, 7, 3], [0, 1, 2], [False, True, True]),
        ({"div_val": 2, "project_same_width": False}, [14, 7, 3], [None, 1, 2], [False, True, True]),
        ({"d_embed": 6}, [6, 6, 6], [0, 0, 0], [False, True, True]),
        ({"d_embed": 28, "div_val": 2, "project_same_width": False}, [28, 14, 7], [0, None, 2], [False, True, True]),
        ({"d_embed": 6, "project_same_width": False}, [6, 6, 6], [0, 0, 0], [False, True, True]),
        ({"tie_projections": (True, False, True)}, [14, 14, 14], [None] * 3, [True, False, True]),
    ],
    ids=str,
)
def test_bands_equal_a_calculation_by_hand(changed, widths, projections, shared):
    edges = [(0, 5), (5, 11), (11, 19)]
    expected = [
        Band(first=first, end=end, width=width, projection=projection, shared=of_both)
        for (first, end), width, projection, of_both in zip(edges, widths, projections, shared, strict=True)
    ]
    assert make_bands(**changed) == expected
    assert [band.size for band in expected] == [5, 6, 8]


def test_without_cutoffs_the_vocabulary_is_one_band():
    assert make_bands(cutoffs=()) == [Band(first=0, end=V, width=14, projection=None, shared=False)]
    assert make_bands(cutoffs=(), d_embed=6, tie_projections=(True,)) == [
        Band(first=0, end=V, width=6, projection=0, shared=True)
    ]


@pytest.mark.parametrize("vocab_size", [7, 11])
def test_a_cutoff_beyond_the_vocabulary_is_rejected(vocab_size):
    with pytest.raises(RecipeError) as caught:
        make_bands(vocab_size)
    assert f"beyond the vocabulary of {vocab_size}" in str(caught.value)


@pytest.mark.parametrize("name", ["wt103", "lm1b", "wt103-large-tf", "adaptive-input-wt103"])
def test_every_recipe_with_bands_takes_the_overrides_that_its_error_suggests(name):
    _, text = recipe.packaged(name)
    with pytest.raises(RecipeError) as caught:
        bands(recipe.resolve_text(text, name).model, V)
    overrides = plain_softmax_overrides(recipe.resolve_text(text, name).model)
    assert all(f"`overrides` {shlex.quote(override)}" in str(caught.value) for override in overrides)
    assert len(bands(recipe.resolve_text(text, name, overrides).model, V)) == 1


def test_the_last_band_may_hold_one_id():
    assert make_bands(12)[-1] == Band(first=11, end=12, width=14, projection=None, shared=True)
