"""config.json and our settings: every key, what left-out keys mean, what no Transformer-XL can have."""

import json

import pytest

from tests.core.builders import model_settings
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import EvalSettings
from txlcli.errors import RunError
from txlcli.exchange import huggingface

CONFIG = {
    "model_type": "transfo-xl",
    "vocab_size": 19,
    "cutoffs": [5, 11],
    "d_model": 14,
    "d_embed": 28,
    "n_head": 3,
    "d_head": 11,
    "d_inner": 17,
    "div_val": 2,
    "pre_lnorm": True,
    "n_layer": 2,
    "mem_len": 7,
    "tgt_len": 5,
    "clamp_len": 13,
    "same_length": False,
    "proj_share_all_but_first": False,
    "attn_type": 0,
    "untie_r": False,
    "tie_word_embeddings": False,
    "dropout": 0.3,
    "dropatt": 0.4,
    "init_std": 0.5,
    "proj_init_std": 0.6,
    "layer_norm_epsilon": 1e-3,
}


def folder_with(tmp_path, **changed):
    """A folder with that configuration; a key that is None is left out."""
    config = {key: value for key, value in {**CONFIG, **changed}.items() if value is not None}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def read(tmp_path, **changed):
    config = huggingface.read_config(folder_with(tmp_path, **changed))
    where = tmp_path / "config.json"
    return huggingface.model_settings(config, where), huggingface.eval_settings(config, where)


def refusal(tmp_path, **changed):
    with pytest.raises(RunError) as caught:
        read(tmp_path, **changed)
    assert "\n" not in str(caught.value)
    return str(caught.value).removeprefix(f"{tmp_path / 'config.json'}: ")


def test_every_key_has_its_setting(tmp_path):
    model, reading = read(tmp_path)
    assert model == TransformerSettings(
        n_layers=2,
        d_model=14,
        n_heads=3,
        d_head=11,
        d_inner=17,
        dropout=0.3,
        attention_dropout=0.4,
        norm="pre_released",
        norm_eps=1e-3,
        tie_biases=True,
        memory_start="zeros",
        cutoffs=(5, 11),
        div_val=2,
        d_embed=28,
        tie_embeddings=False,
        tie_projections=(False, False, False),
        init_std=0.5,
        proj_init_std=0.6,
    )
    assert reading == EvalSettings(seg_len=5, mem_len=7, max_distance=13, same_length="off")


def test_keys_that_are_left_out_are_those_of_the_released_large_model(tmp_path):
    model, reading = read(tmp_path, **dict.fromkeys(key for key in CONFIG if key != "model_type"))
    assert model == TransformerSettings(
        n_layers=18,
        d_model=1024,
        n_heads=16,
        d_head=64,
        d_inner=4096,
        memory_start="zeros",
        tie_biases=False,
        cutoffs=(20_000, 40_000, 200_000),
        div_val=4,
        d_embed=1024,
        tie_projections=(False, True, True, True),
    )
    assert reading == EvalSettings(seg_len=128, mem_len=1600, max_distance=1000, same_length="m")


def test_projections_are_named_one_by_one_or_by_their_rule(tmp_path):
    assert read(tmp_path, proj_share_all_but_first=True)[0].tie_projections == (False, True, True)
    named = read(tmp_path, proj_share_all_but_first=True, tie_projs=[True, False, True])
    assert named[0].tie_projections == (True, False, True)


@pytest.mark.parametrize("clamp_len", [0, -1])
def test_without_a_limit_the_distances_are_those_of_the_reading(tmp_path, clamp_len):
    assert read(tmp_path, clamp_len=clamp_len)[1].max_distance == 5 + 7


# --- what is refused -------------------------------------------------------------------------------------------------


def test_a_folder_without_configuration_is_told(tmp_path):
    with pytest.raises(RunError) as caught:
        huggingface.read_config(tmp_path)
    assert str(caught.value) == f"{tmp_path} has no config.json; give a Hugging Face folder, or a file of weights"


@pytest.mark.parametrize("data", [b'{"model_type": "transfo-xl"', b"\xff\xfe", b"", b"[" * 100_000])
def test_broken_json_is_told(tmp_path, data):
    (tmp_path / "config.json").write_bytes(data)
    with pytest.raises(RunError) as caught:
        huggingface.read_config(tmp_path)
    assert str(caught.value).startswith(f"{tmp_path / 'config.json'}: no readable JSON (")
    assert str(caught.value).endswith("); fetch it again")


OTHER = 'not "transfo-xl"; only Transformer-XL can be imported'


@pytest.mark.parametrize(("model_type", "shown"), [("gpt2", "gpt2"), (None, "None")])
def test_another_model_is_refused(tmp_path, model_type, shown):
    assert refusal(tmp_path, model_type=model_type) == f'the model type is "{shown}", {OTHER}'


def test_a_list_is_no_configuration(tmp_path):
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(RunError, match='the model type is "list", not "transfo-xl"'):
        huggingface.read_config(tmp_path)


@pytest.mark.parametrize("attn_type", [1, 2, 3])
def test_other_attention_is_refused(tmp_path, attn_type):
    assert refusal(tmp_path, attn_type=attn_type) == (
        f"attn_type {attn_type} is not the attention of Transformer-XL; give a model with attn_type 0, no other can be "
        "imported"
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_layer": 0}, "[model] n_layers must be greater than 0, not 0"),
        ({"d_model": 13}, "[model] d_model must be even (half sines, half cosines), not 13"),
        ({"cutoffs": [11, 5]}, "[model] cutoffs must be ids above 0, each larger than the one before, not [11, 5]"),
        ({"tie_projs": [True]}, "[model] tie_projections must be "),
        ({"div_val": 7}, "[model] div_val must be "),
        ({"mem_len": -1}, "[eval] mem_len must be 0 or more, not -1"),
    ],
)
def test_values_that_no_model_can_have_are_refused(tmp_path, changed, message):
    assert refusal(tmp_path, **changed).startswith(message)


@pytest.mark.parametrize(
    "changed", [{"cutoffs": 5}, {"n_layer": "two"}, {"tie_projs": 7}, {"clamp_len": "far"}, {"mem_len": [7]}]
)
def test_values_of_another_type_are_told_on_one_line(tmp_path, changed):
    assert refusal(tmp_path, **changed)


# --- and back ------------------------------------------------------------------------------------------------------


def written(model, reading):
    return huggingface.config_of(model, reading, 19, 3)


def test_what_is_written_is_read_as_the_same_settings(tmp_path):
    model, reading = read(tmp_path)
    config = written(model, reading)
    assert {key: config[key] for key in CONFIG if key != "proj_share_all_but_first"} == {
        key: value for key, value in CONFIG.items() if key != "proj_share_all_but_first"
    }
    assert (config["tie_projs"], config["eos_token_id"]) == ([False, False, False], 3)
    assert read(tmp_path, **config) == (model, reading)


def test_projections_that_are_left_to_the_default_are_written_out():
    assert written(model_settings(cutoffs=(5, 11)), EvalSettings(seg_len=5, mem_len=7))["tie_projs"] == [
        False,
        True,
        True,
    ]
    assert written(model_settings(), EvalSettings(seg_len=5, mem_len=7))["tie_projs"] == [False]


@pytest.mark.parametrize(
    ("mem_len", "same_length", "expected"),
    [
        (7, "m", (7, True)),
        (7, "m_plus_one", (8, True)),  # theirs sees as many keys as its memory is long
        (7, "off", (7, False)),
        (0, "m", (0, False)),  # theirs would see no key at all
        (0, "m_plus_one", (0, False)),
    ],
)
def test_the_keys_that_a_query_sees_stay_the_same(mem_len, same_length, expected):
    config = written(model_settings(), EvalSettings(seg_len=5, mem_len=mem_len, same_length=same_length))
    assert (config["mem_len"], config["same_length"]) == expected


def test_distances_without_a_limit_stay_so():
    assert written(model_settings(), EvalSettings(seg_len=5, mem_len=7))["clamp_len"] == -1


def test_a_last_norm_cannot_be_written():
    with pytest.raises(RunError) as caught:
        written(model_settings(norm="pre"), EvalSettings(seg_len=5, mem_len=7))
    assert str(caught.value) == (
        'norm = "pre" ends in a normalisation that Hugging Face\'s TransfoXL lacks; it cannot be exported'
    )


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"n_layer": "2"}, "[model] n_layers must be a whole number, not '2'"),
        ({"cutoffs": "abc"}, "[model] cutoffs must be a list of whole numbers, not 'abc'"),
        ({"cutoffs": None}, "[model] cutoffs must be a list of whole numbers, not None"),
        ({"d_model": None}, "[model] d_model must be a whole number, not None"),
        ({"layer_norm_epsilon": "x"}, "[model] norm_eps must be a number, not 'x'"),
        ({"tie_projs": [False, True]}, "[model] tie_projections must be as many as bands (3), not [False, True]"),
        ({"untie_r": "false"}, "untie_r must be true or false, not 'false'"),
    ],
)
def test_a_value_of_the_wrong_kind_is_named(tmp_path, changed, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed))
    config = huggingface.read_config(tmp_path)
    with pytest.raises(RunError) as caught:
        huggingface.model_settings(config, tmp_path / "config.json")
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {message}"


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"same_length": "no"}, "same_length must be true or false, not 'no'"),
        ({"clamp_len": None}, "clamp_len must be a whole number, not None"),
        ({"tgt_len": "a"}, "[eval] seg_len must be a whole number, not 'a'"),
        ({"mem_len": -1}, "[eval] mem_len must be 0 or more, not -1"),
    ],
)
def test_a_reading_of_the_wrong_kind_is_named(tmp_path, changed, message):
    (tmp_path / "config.json").write_text(json.dumps(CONFIG | changed))
    config = huggingface.read_config(tmp_path)
    with pytest.raises(RunError) as caught:
        huggingface.eval_settings(config, tmp_path / "config.json")
    assert str(caught.value) == f"{tmp_path / 'config.json'}: {message}"


@pytest.mark.parametrize("size", ["x", 0, 19.0])
def test_a_vocabulary_size_is_a_number(tmp_path, size):
    with pytest.raises(RunError, match="vocab_size must be a whole number above 0, not"):
        huggingface.vocab_size({"vocab_size": size}, tmp_path)
