"""`txl recipes`: the list, the text of a recipe, the settings."""

import tomllib
from importlib import resources

import pytest

from tests.commands.novel import done, json_of, refusal
from txlcli.config import recipe

NAMES = recipe.packaged_names()


@pytest.fixture(autouse=True)
def directory(tmp_path, monkeypatch):
    """Make an empty folder the current one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def original(name):
    return resources.files("txlcli.recipes").joinpath(f"{name}.toml").read_bytes()


def test_the_list_has_every_recipe_once_and_fits_a_terminal():
    result = done("recipes")
    assert result.stderr == ""
    rows = [line for line in result.stdout.splitlines() if line.startswith("│")]
    assert [row.strip("│").split()[0] for row in rows] == NAMES
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_the_list_is_printed_as_json():
    listed = {entry["name"]: entry for entry in json_of("recipes")["recipes"]}
    assert list(listed) == NAMES
    paper = recipe.load("wt103-large").published
    facts = {"parameters": paper.parameters, "paper_valid": paper.valid, "paper_test": paper.test}
    assert listed["wt103-large"].items() >= ({"store": "wt103", "metric": "ppl"} | facts).items()
    assert [listed["stdlib"][key] for key in ("parameters", "vocab_size", "paper_test")] == [None] * 3
    # A first sentence that continues in the second line of the header.
    assert listed["qrnn-wt103"]["description"].startswith('Table 1, "Merity et al. (2018) - QRNN"')
    assert listed["text8"]["description"] == "The 12-layer model of Table 2 on text8, as the released scripts train it"


@pytest.mark.parametrize("word", ["wt103", "wt103.toml", "recipes/wt103.toml", "recipes/wt103"])
def test_show_prints_the_packaged_recipe_even_if_a_file_has_its_name(directory, word):
    (directory / "recipes").mkdir()
    for file in ("wt103", "wt103.toml", "recipes/wt103", "recipes/wt103.toml"):
        (directory / file).write_text("mine")
    assert done("recipes", "show", word).stdout.encode() == original("wt103")


@pytest.mark.parametrize("name", ["stdlib", "ptb", "compressive-wt103"])
def test_show_as_json_has_every_setting(name):
    table = json_of("recipes", "show", name)
    assert recipe.resolve(table, where="here") == recipe.load(name)
    written = tomllib.loads(original(name).decode())["train"]
    assert table["train"]["clip"] == written.get("clip", 0.25)
    assert table["train"].keys() > written.keys()


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        ("wt103", '"txl recipes show wt103"'),
        ("shwo", 'did you mean "show"?'),
        ("show", "Missing argument 'NAME'"),
        ("show ptb --force", "unknown option --force"),
        ("list", '"txl recipes" alone lists all'),
        ("-q show ptb", "--quiet must come last: txl recipes show ... --quiet"),
        ("keys trian.lr", 'did you mean "train.lr"?'),
        ("keys lr", 'did you mean "train.lr"?'),
    ],
)
def test_wrong_arguments_are_rejected_on_one_line_with_exit_code_2(words, telling):
    assert telling in refusal("recipes", *words.split())


def test_keys_lists_every_setting_with_its_values_and_default():
    text = done("recipes", "keys").stdout
    headings = [line for line in text.splitlines() if line and not line.startswith(" ")]
    assert len(headings) > 70
    assert "train.lr (number, greater than 0; default 0.00025)" in headings
    assert "model.n_heads (whole number, at least 1; required; arch = transformer, compressive, rmt)" in headings
    assert max(len(line) for line in text.splitlines() if line.startswith(" ")) <= 80


def test_keys_of_one_section_as_json():
    every = json_of("recipes", "keys", "log")["settings"][0]
    assert (every["setting"], every["values"], every["default"]) == ("log.every", "whole number, at least 1", "200")
