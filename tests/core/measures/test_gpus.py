"""Data of GPUs: peak rates, and the shares of them that were measured."""

import pytest

from tests.core.builders import model_settings
from txlcli.core.measures.gpus import data_sheet_flops_per_s, expected_share


@pytest.mark.parametrize(
    ("card", "precision", "tflops"),
    [
        ("NVIDIA H100 80GB HBM3", "bf16", 989),
        ("NVIDIA A100-SXM4-40GB", "tf32", 156),
        ("Tesla T4", "bf16", None),
        ("NVIDIA L4 of another maker", "bf16", None),
        ("cpu (2 threads)", "fp32", None),
    ],
)
def test_a_card_has_the_peak_rate_of_its_data_sheet(card, precision, tflops):
    assert data_sheet_flops_per_s(card, precision) == (tflops and 1e12 * tflops)


@pytest.mark.parametrize(
    ("model", "device_type", "step_flops", "share", "recipe"),
    [
        ({}, "cuda", 1e13, 0.11, "enwik8"),
        ({}, "cuda", 1e9, 0.022, "ptb-memory"),
        ({"cutoffs": (5,)}, "cuda", 1e13, 0.035, "wt103"),
        ({}, "cpu", 1e13, 0.5, None),
    ],
)
def test_a_step_is_expected_to_reach_what_the_most_similar_one_reached(model, device_type, step_flops, share, recipe):
    expected, source = expected_share(model_settings(**model), step_flops, device_type)
    assert (expected, bool(source)) == (share, recipe is not None)
    assert recipe is None or source.startswith(f"{recipe} on one NVIDIA H100 80GB HBM3")
