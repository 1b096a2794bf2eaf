"""Data of GPUs: peak rates, and the shares of them that were measured."""

import pytest

from tests.core.builders import model_settings
from txlcli.config import recipe
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.gpus import data_sheet_flops_per_s, expected_share


def test_a_card_has_the_peak_rate_of_its_data_sheet_by_its_whole_name():
    assert data_sheet_flops_per_s("NVIDIA A100-SXM4-40GB", "tf32") == 156e12
    for card, precision in (("Tesla T4", "bf16"), ("NVIDIA L4 of another maker", "bf16"), ("cpu (2 threads)", "fp32")):
        assert data_sheet_flops_per_s(card, precision) is None


@pytest.mark.parametrize(
    ("model", "step_flops", "name"),
    [({}, 1e13, "enwik8"), ({}, 1e9, "ptb-memory"), ({"cutoffs": (5,)}, 1e13, "wt103")],
)
def test_a_step_is_expected_to_reach_what_the_most_similar_one_reached(model, step_flops, name):
    share, source, of_data_sheet = expected_share(model_settings(**model), step_flops, "cuda")
    assert 0.01 < share < 0.3
    assert source == f"{name} on one NVIDIA H200"
    assert of_data_sheet == pytest.approx(share * 784 / 989)
    assert expected_share(model_settings(**model), step_flops, "cpu").source == ""


@pytest.mark.parametrize("name", ["enwik8", "ptb-memory", "wt103", "wt103-nvidia"])
def test_a_recipe_that_was_measured_is_expected_to_reach_its_own_share(name):
    changes = ["train.batch_size=32"] if name == "wt103-nvidia" else []
    settings = recipe.load(name, changes)
    train = settings.train
    flops = step_flops_per_token(settings.model, settings.published.vocab_size, train)
    found = expected_share(settings.model, train.batch_size * train.seg_len * flops, "cuda")
    assert found.source == f"{name} on one NVIDIA H200"
