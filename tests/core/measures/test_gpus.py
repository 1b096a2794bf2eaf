"""Data of GPUs: peak rates, and the shares of them that were measured."""

import tomllib
from importlib.resources import files

import pytest

from tests.core.builders import model_settings
from txlcli.config import recipe
from txlcli.core.measures.cost import step_flops_per_token
from txlcli.core.measures.gpus import data_sheet_flops_per_s, expected_step, product_flops_per_s

MEASURED = tomllib.loads(files("txlcli.core.measures").joinpath("gpus.toml").read_text(encoding="utf-8"))["measured"]
LAYER_S = MEASURED["layer_us"] / 1e6
"""Seconds for each layer of a step, whatever the batch."""


def measured_step(name):
    """Return what was measured with a recipe."""
    (step,) = (step for step in MEASURED["steps"] if step["recipe"] == name)
    return step


def test_a_card_has_the_peak_rate_of_its_data_sheet_by_its_whole_name():
    assert data_sheet_flops_per_s("NVIDIA A100-SXM4-40GB", "tf32") == 156e12
    for card, precision in (("Tesla T4", "bf16"), ("NVIDIA L4 of another maker", "bf16"), ("cpu (2 threads)", "fp32")):
        assert data_sheet_flops_per_s(card, precision) is None


@pytest.mark.parametrize(
    ("model", "mflop_per_token", "name"),
    [({}, 1e3, "enwik8"), ({}, 1, "ptb-memory"), ({"cutoffs": (5,)}, 1, "wt103")],
)
def test_a_step_is_expected_to_take_as_long_as_the_most_similar_one(model, mflop_per_token, name):
    settings = model_settings(**model)
    step = expected_step(settings, 1e6 * mflop_per_token, "cuda")
    assert step.source == f"{name} on one NVIDIA H200"
    assert step.seconds(0, 1e15) == pytest.approx(LAYER_S * settings.n_layers)
    assert step.seconds(2e12, 1e15) - step.seconds(1e12, 1e15) == pytest.approx(1e-3 / step.share)
    on_cpu = expected_step(settings, 1e6 * mflop_per_token, "cpu")
    assert (on_cpu.source, on_cpu.seconds(1e9, 1e9)) == ("", 2)


@pytest.mark.parametrize("name", ["enwik8", "ptb-memory", "wt103", "wt103-nvidia"])
def test_a_recipe_that_was_measured_is_expected_to_take_its_own_time(name):
    changes = ["train.batch_size=32"] if name == "wt103-nvidia" else []
    settings = recipe.load(name, changes)
    train = settings.train
    flops_per_token = step_flops_per_token(settings.model, settings.published.vocab_size, train)
    step = expected_step(settings.model, flops_per_token, "cuda")
    assert step.source == f"{name} on one NVIDIA H200"
    flops = train.batch_size * train.seg_len * flops_per_token
    product = product_flops_per_s(data_sheet_flops_per_s("NVIDIA H200", "bf16"))
    assert product == pytest.approx(1e12 * MEASURED["product_tflops"])
    assert step.seconds(flops, product) == pytest.approx(measured_step(name)["ms"] / 1e3, rel=0.01)
