"""Descriptions of settings are the texts below their fields."""

from dataclasses import dataclass

import pytest

from txlcli.config.descriptions import descriptions
from txlcli.config.model_settings import MODELS, ModelSettings, register_model_settings


@dataclass(frozen=True, kw_only=True)
class Described(ModelSettings):
    """A section with a default of two lines, and a field that hides one of its base."""

    reach: tuple[int, ...] = (
        2,
        3,
    )
    """Distances: "near"
    ones."""
    init_std: float = 0.5
    """Another text."""


@dataclass(frozen=True, kw_only=True)
class Undescribed(ModelSettings):
    """A section with a field that has no text."""

    first: int = 1
    second: int = 2
    """Text of the second field."""

    third: int = 3


def test_each_field_has_the_text_below_it():
    texts = descriptions(Described)
    assert texts["reach"] == 'Distances: "near" ones.'
    assert texts["init_std"] == "Another text."
    assert texts["n_layers"] == "Number of layers N."


def test_an_architecture_whose_setting_has_no_description_is_not_registered():
    with pytest.raises(ValueError, match=r"Undescribed\.first has no description"):
        register_model_settings("undescribed", Undescribed)
    assert "undescribed" not in MODELS


def test_a_class_without_source_is_not_registered():
    names = {"ModelSettings": ModelSettings, "dataclass": dataclass, "__name__": "typed_in"}
    exec("@dataclass(frozen=True)\nclass Typed(ModelSettings):\n    width: int = 3\n", names)
    with pytest.raises(ValueError, match="define it in a file"):
        register_model_settings("typed", names["Typed"])
