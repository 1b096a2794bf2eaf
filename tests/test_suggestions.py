"""A wrong name is answered with the name that was meant: synonyms first, then spelling."""

import pytest

from txlcli.config import recipe
from txlcli.suggestions import did_you_mean, meant_option, meant_setting

DEVICES = ["auto", "cpu", "cuda"]
CORPORA = ["enwik8", "text8", "wt103", "lm1b", "ptb", "stdlib"]
TOKENIZERS = ["byte", "char", "word", "sentencepiece"]
COMMANDS = ["quickstart", "prepare", "train", "eval", "speed", "generate", "runs", "recipes", "import", "export"]
TRAIN = ["--name", "--resume", "--max-steps", "--set", "--device", "--precision", "--processes", "--help"]
EVAL = ["--mem-len", "--seg-len", "--max-distance", "--plot", "--device", "--precision", "--batch-size", "--help"]


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("gpu", DEVICES, "cuda"),
        ("wikitext", CORPORA, "wt103"),
        ("trian", COMMANDS, "train"),
        ("zebra", COMMANDS, None),
    ],
)
def test_a_name_is_suggested_by_meaning_then_by_spelling(word, known, meant):
    assert did_you_mean(word, known) == (f'; did you mean "{meant}"?' if meant else "")


@pytest.mark.parametrize(
    ("section", "key", "meant"),
    [
        ("train", "learning_rate", "lr"),
        ("model", "nlayers", "n_layers"),
        ("train", "n_layers", "model.n_layers"),
        ("model", "seg_len", "train.seg_len"),
        ("train", "zebra", None),
    ],
)
def test_a_setting_is_suggested_with_its_section_where_that_differs(section, key, meant):
    assert meant_setting(section, key, recipe.setting_names()) == meant


@pytest.mark.parametrize(
    ("option", "options", "meant"),
    [
        ("--lr", TRAIN, "--set train.lr=VALUE"),
        ("--gpu", TRAIN, "--device cuda"),
        ("--devise", EVAL, "--device"),
        ("--lr", EVAL, None),
    ],
)
def test_an_option_is_suggested_or_the_setting_that_does_it(option, options, meant):
    assert meant_option(option, options, recipe.setting_names()) == meant


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [("bpe", TOKENIZERS, "sentencepiece with `sp_type` bpe"), ("resume", COMMANDS, "train --resume RUN")],
)
def test_a_name_is_suggested_with_the_option_it_needs(word, known, meant):
    assert did_you_mean(word, known) == f"; did you mean {meant}?"


def test_every_setting_of_the_synonyms_exists():
    from txlcli import suggestions

    assert set(suggestions.tables()["settings"]) <= set(recipe.setting_names())
