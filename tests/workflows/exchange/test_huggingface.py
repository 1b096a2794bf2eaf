"""Converting config.json to settings and back: every key, defaults, and invalid values."""

import json

import pytest

from tests.core.builders import model_settings
from tests.errors import rejection
from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.errors import RecipeError, RunError
from txlcli.workflows.exchange import huggingface

CONFIG = {
    **{"model_type": "transfo-xl", "vocab_size": 19, "cutoffs": [5, 11], "d_model": 14, "d_embed": 28, "n_head": 3},
    **{"d_head": 11, "d_inner": 17, "div_val": 2, "pre_lnorm": True, "n_layer": 2, "mem_len": 7, "tgt_len": 5},
    **{"clamp_len": 13, "same_length": False, "proj_share_all_but_first": False, "attn_type": 0, "untie_r": False},
    **{"tie_word_embeddings": False, "dropout": 0.3, "dropatt": 0.4, "init_std": 0.5, "proj_init_std": 0.6},
    **{"layer_norm_epsilon": 1e-3},
}


def directory_with(tmp_path, **changed):
    """Write the configuration into the directory; a key that is None is left out."""
    config = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def read(tmp_path, **changed):
    keys = huggingface.read_keys(directory_with(tmp_path, **changed))
    return recipe.read_section("model", keys["model"]), recipe.read_section("eval", keys["eval"])


def refusal(tmp_path, **changed):
    return rejection((RunError, RecipeError), read, tmp_path, **changed).removeprefix(f"{tmp_path / 'config.json'}: ")


def test_every_key_becomes_a_setting(tmp_path):
    model, evaluation = read(tmp_path)
    assert model == TransformerSettings(
        **{"n_layers": 2, "d_model": 14, "n_heads": 3, "d_head": 11, "d_inner": 17, "d_embed": 28},
        **{"dropout": 0.3, "attention_dropout": 0.4, "norm": "pre_released", "norm_eps": 1e-3, "cutoffs": (5, 11)},
        **{"tie_biases": True, "tie_embeddings": False, "tie_projections": (False, False, False), "div_val": 2},
        **{"memory_start": "zeros", "init_std": 0.5, "proj_init_std": 0.6},
    )
    assert evaluation == EvalSettings(seg_len=5, mem_len=7, max_distance=13, same_length="off")


def test_missing_keys_have_the_values_of_the_released_large_model(tmp_path):
    model, evaluation = read(tmp_path, **dict.fromkeys(key for key in CONFIG if key != "model_type"))
    assert model == TransformerSettings(
        **{"n_layers": 18, "d_model": 1024, "n_heads": 16, "d_head": 64, "d_inner": 4096, "d_embed": 1024},
        **{"cutoffs": (20_000, 40_000, 200_000), "div_val": 4, "tie_projections": (False, True, True, True)},
        **{"memory_start": "zeros", "tie_biases": False},
    )
    assert evaluation == EvalSettings(seg_len=128, mem_len=1600, max_distance=1000, same_length="m")


def test_keys_of_early_releases_are_read(tmp_path):
    early = dict.fromkeys(("model_type", "vocab_size", "tie_word_embeddings")) | {"n_token": 19, "tie_weight": False}
    assert read(tmp_path, **early) == read(tmp_path)


def test_tied_projections_are_read_from_either_key(tmp_path):
    assert read(tmp_path, proj_share_all_but_first=True)[0].tie_projections == (False, True, True)
    named = read(tmp_path, proj_share_all_but_first=True, tie_projs=[True, False, True])
    assert named[0].tie_projections == (True, False, True)


@pytest.mark.parametrize("clamp_len", [0, -1])
def test_without_clamp_len_the_largest_distance_is_the_sum_of_the_lengths(tmp_path, clamp_len):
    assert read(tmp_path, clamp_len=clamp_len)[1].max_distance == 5 + 7


# --- what is rejected ------------------------------------------------------------------------------------------------


def test_a_directory_without_configuration_is_rejected(tmp_path):
    with pytest.raises(RunError, match=r"has no config\.json"):
        huggingface.read_keys(tmp_path)


@pytest.mark.parametrize("data", [b'{"model_type": "transfo-xl"', b"[1]", b"\xff\xfe", b"", b"[" * 100_000])
def test_damaged_json_is_rejected(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(RunError, match="not readable as a configuration"):
        huggingface.read_keys(tmp_path)


OTHER = 'not "transfo-xl"; only Transformer-XL can be imported'


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model_type": "gpt2"}, f'model_type is "gpt2", {OTHER}'),
        ({"model_type": None}, f'model_type is "None", {OTHER}'),
        ({"n_layer": "2"}, "[model] n_layers must be a whole number"),
        ({"tie_projs": [False, True]}, "[model] tie_projections must be as many as bands (3)"),
        ({"clamp_len": "far"}, "not readable as a configuration"),
        ({"tgt_len": "a"}, "[eval] seg_len must be a whole number"),
    ],
)
def test_invalid_values_are_reported(tmp_path, changed, message):
    assert refusal(tmp_path, **changed).startswith(message)


# --- and back ------------------------------------------------------------------------------------------------------


def written(model, evaluation):
    return json.loads(json.dumps(huggingface.config_of(model, evaluation, 19, 3)))


def test_a_written_configuration_is_read_as_the_same_settings(tmp_path):
    model, evaluation = read(tmp_path)
    config = written(model, evaluation)
    assert {key: config[key] for key in CONFIG if key != "proj_share_all_but_first"} == {
        key: value for key, value in CONFIG.items() if key != "proj_share_all_but_first"
    }
    assert (config["tie_projs"], config["eos_token_id"]) == ([False, False, False], 3)
    assert read(tmp_path, **config) == (model, evaluation)


def test_defaults_are_written_explicitly():
    evaluation = EvalSettings(seg_len=5, mem_len=7)
    assert written(model_settings(cutoffs=(5, 11)), evaluation)["tie_projs"] == [False, True, True]
    config = written(model_settings(), evaluation)
    assert (config["tie_projs"], config["clamp_len"]) == ([False], -1)


@pytest.mark.parametrize(
    ("mem_len", "same_length", "expected"),
    [
        (7, "m", (7, True)),
        (7, "m_plus_one", (8, True)),  # Hugging Face's model sees as many keys as its memory is long
        (7, "off", (7, False)),
        (0, "m", (0, False)),  # Hugging Face's model would see no key at all
        (0, "m_plus_one", (0, False)),
    ],
)
def test_a_query_sees_the_same_keys(mem_len, same_length, expected):
    config = written(model_settings(), EvalSettings(seg_len=5, mem_len=mem_len, same_length=same_length))
    assert (config["mem_len"], config["same_length"]) == expected
