"""The JSON Schema and the list of settings are those of the dataclasses that check recipes."""

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest

from txlcli.config import recipe, schema
from txlcli.errors import RecipeError

BASE = tomllib.loads(recipe.packaged("ptb")[1])
WRONG = [
    ("train", "lr", 0),
    ("train", "lr", "fast"),
    ("train", "seg_len", 2.5),
    ("train", "seg_len", 2**31),
    ("train", "seed", -1),
    ("train", "clip", 0),
    ("train", "min_lr_ratio", 1.5),
    ("train", "plateau_factor", 1),
    ("train", "optimizer", "lion"),
    ("model", "dropout", 1.0),
    ("model", "n_layer", 3),
    ("model", "tie_embeddings", "yes"),
    ("model", "cutoffs", [1.5]),
    ("published", "test", 0),
]


def errors(table):
    return list(jsonschema.Draft7Validator(schema.json_schema()).iter_errors(table))


def changed(section, key, value):
    return BASE | {section: BASE.get(section, {}) | {key: value}}


def test_the_schema_is_valid_and_packaged_as_it_is_generated():
    jsonschema.Draft7Validator.check_schema(schema.json_schema())
    assert json.loads(Path(recipe.schema_file()).read_text()) == schema.json_schema()


@pytest.mark.parametrize("name", recipe.packaged_names())
def test_the_schema_accepts_every_packaged_recipe_which_names_it(name):
    text = recipe.packaged(name)[1]
    assert errors(tomllib.loads(text)) == []
    assert text.startswith("#:schema schema.json\n")


@pytest.mark.parametrize(("section", "key", "value"), WRONG)
def test_the_schema_and_the_program_reject_the_same_values(section, key, value):
    table = changed(section, key, value)
    assert len(errors(table)) == 1
    with pytest.raises(RecipeError, match=key):
        recipe.resolve(table, where="x")


@pytest.mark.parametrize(
    ("section", "key", "value"), [("train", "clip", "none"), ("train", "lr", 1), ("model", "cutoffs", [5, 7])]
)
def test_the_schema_and_the_program_accept_the_same_values(section, key, value):
    table = changed(section, key, value)
    assert errors(table) == []
    recipe.resolve(table, where="x")


def test_a_key_with_two_meanings_accepts_the_values_of_both():
    assert errors(changed("model", "window", 1)) == []  # a QRNN's; the Transformer's are 2 or more
    assert errors(changed("model", "window", 512)) == []
    assert len(errors(changed("model", "window", 0))) == 1


def test_a_missing_section_or_key_is_an_error_of_the_schema():
    without = {name: keys for name, keys in BASE.items() if name != "train"}
    assert [error.message for error in errors(without)] == ["'train' is a required property"]
    shorter = {key: value for key, value in BASE["train"].items() if key != "seg_len"}
    assert [error.message for error in errors(BASE | {"train": shorter})] == ["'seg_len' is a required property"]


def test_every_setting_is_described_with_its_values_and_default():
    keys = {key.full_name: key for section in recipe.SECTIONS for key in schema.keys(section)}
    assert set(keys) == set(recipe.setting_names())
    assert all(key.description.endswith(".") for key in keys.values())
    assert (keys["train.lr"].values, keys["train.lr"].shown_default) == ("number, greater than 0", "0.00025")
    assert (keys["train.clip"].values, keys["train.seg_len"].shown_default) == (
        "number, greater than 0, or none",
        "required",
    )
    assert (keys["model.norm"].values, keys["model.d_embed"].shown_default) == ("post, pre, pre_released", "-")


def test_a_setting_whose_default_depends_on_the_architecture_is_listed_for_each():
    stds = {key.architectures: key.default for key in schema.keys("model") if key.name == "init_std"}
    assert stds == {("transformer", "compressive", "rmt"): 0.02, ("lstm", "qrnn"): 0.1}
