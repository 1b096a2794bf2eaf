"""The list of settings is that of the dataclasses that check recipes."""

from txlcli.config import recipe
from txlcli.config.keys import keys as keys_of


def test_every_setting_is_described_with_its_values_and_default():
    keys = {key.setting: key for section in recipe.SECTIONS for key in keys_of(section)}
    assert set(keys) == set(recipe.setting_names())
    assert all(key.description.endswith(".") for key in keys.values())
    assert (keys["train.lr"].values, keys["train.lr"].default) == ("number, greater than 0", "0.00025")
    assert keys["train.clip"].values == "number, greater than 0, or none"
    assert keys["train.seg_len"].default == "required"
    assert (keys["model.norm"].values, keys["model.d_embed"].default) == ("one of post, pre, pre_released", "-")


def test_a_setting_whose_default_depends_on_the_architecture_is_listed_for_each():
    stds = {key.arch: key.default for key in keys_of("model") if key.setting == "model.init_std"}
    assert stds == {("transformer", "compressive", "rmt"): "0.02", ("lstm", "qrnn"): "0.1"}
