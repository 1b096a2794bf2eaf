"""Text of the user's own: from a folder to a result without a recipe, and no training twice."""

import pytest

from tests.commands.novel import done, json_of, refusal, txl

SHORT = [
    *("--set", "train.max_steps=3", "--set", "train.valid_every=3", "--set", "train.seg_len=7"),
    *("--set", "train.mem_len=7", "--set", "train.batch_size=3", "--set", "model.n_layers=1"),
]


@pytest.mark.parametrize(
    ("tokenizer", "recipe_name"),
    [("byte", "stdlib"), ("char", "stdlib"), ("word", "ptb-small"), ("sentencepiece", "ptb-small")],
)
def test_a_store_is_trained_with_the_small_recipe_of_its_unit(untouched, tokenizer, recipe_name):
    size = ["--vocab-size", "300"] if tokenizer == "sentencepiece" else []
    prepared = done("prepare", "novel", "--tokenizer", tokenizer, *size)
    assert prepared.stdout.splitlines()[-1].startswith("next: txl train novel")
    name = prepared.stdout.splitlines()[-1].split()[-1]
    trained = txl("train", name, *SHORT)
    assert trained.exit_code == 0, trained.stderr
    assert f'training the recipe "{recipe_name}" on it' in trained.stderr
    settings = json_of("runs")["runs"][0]
    assert (settings["name"], settings["recipe"]) == (name, recipe_name)
    assert json_of("eval", name, "--mem-len", 7, "--positions", 30)["rows"][0]["tokens"] == 30


def test_a_finished_training_is_repeated_only_with_another_seed_setting_or_name(here):
    again = ["train", "tiny.toml"]
    assert done(*again, "--name", "first").exit_code == 0
    assert "is finished and has the same settings, text and seed" in refusal(*again, code=1)
    assert not (here / "runs/tiny").exists()
    for changed in (["--seed", "5"], ["--set", "train.lr=0.001"], ["--name", "second"]):
        done(*again, *changed)
