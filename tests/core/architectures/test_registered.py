"""An architecture that is registered from outside the package: its model, its reader and its operations."""

import pytest

from tests.core.builders import V, model_settings
from tests.extensions import GruModel, GruProducts, GruSettings, registered_architecture, registered_gru
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.recipe import read_section
from txlcli.config.settings import EvalSettings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures import register_architecture
from txlcli.core.architectures.registry import count_parameters, make_model
from txlcli.core.measures.cost import evaluation_flops_per_token
from txlcli.core.measures.forecast import parameters_by_part, step_bytes
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.reading.decoder import Decoder
from txlcli.core.reading.registry import make_reader
from txlcli.errors import RecipeError
from txlcli.testing import check_architecture

B, L, N, d = 3, 5, 2, 7
KEYS = {"arch": "gru", "n_layers": N, "d_model": d, "dropout": 0.0}


@pytest.fixture(autouse=True)
def gru():
    with registered_gru():
        yield


def test_a_name_of_an_architecture_is_registered_once():
    for name in ("gru", "transformer"):
        with pytest.raises(ValueError, match=f'"{name}" is registered already'):
            register_architecture(name, settings=GruSettings, model=GruModel, products=GruProducts, reader="states")


def test_an_unknown_reader_is_rejected():
    with pytest.raises(ValueError, match='reader must be "states", "keys" or a class, not "key"'):
        register_architecture("other", settings=GruSettings, model=GruModel, products=GruProducts, reader="key")


def test_recipes_accept_its_name_and_its_own_keys():
    settings = read_section("model", {**KEYS, "skip": True})
    assert settings == GruSettings(**KEYS, skip=True)
    with pytest.raises(RecipeError, match=r"arch must be one of .* gru, not 'grue'"):
        read_section("model", {**KEYS, "arch": "grue"})
    with pytest.raises(RecipeError, match='does not apply to arch = "gru"'):
        read_section("model", {**KEYS, "n_heads": 3})


def test_its_parameters_and_operations_are_counted():
    settings = read_section("model", KEYS)
    gates = N * (6 * d * d + 6 * d)
    assert parameters_by_part(settings, V) == {"embedding": V * d, "softmax": V, "other": gates}
    assert count_parameters(settings, V) == V * d + V + gates
    assert evaluation_flops_per_token(settings, V, EvalSettings(seg_len=L, mem_len=0)) == 2 * (6 * N * d * d + V * d)
    needed = step_bytes(settings, V, TrainSettings(seg_len=L, mem_len=0, batch_size=B, max_steps=1))
    assert needed.memory == 4 * B * N * d
    assert needed.activations > 0


def test_it_keeps_the_contract():
    check_architecture("gru", n_layers=N, d_model=d)


def test_a_model_that_derives_from_transformer_xl_is_not_taken_for_it():
    with registered_architecture("derived", settings=TransformerSettings, model=TransformerXL, reader="keys"):
        model = make_model(model_settings(arch="derived"), V)
        assert isinstance(make_reader(model, EvalSettings(seg_len=L, mem_len=0)), Decoder)
        assert isinstance(make_reader(model, EvalSettings(seg_len=L, mem_len=L)), Decoder)
