"""The forecast of a reader's memory equals what readers of real tensors hold, operation by operation."""

import dataclasses

import pytest
import torch

from tests.commands.novel import RECIPE
from txlcli.config import recipe
from txlcli.config.settings import EvalSettings
from txlcli.core.kernels.linear import OneDnnUse, use_onednn
from txlcli.core.kernels.private import observed_results
from txlcli.core.measures.live_bytes import LiveBytes
from txlcli.core.measures.reading_forecast import NO_ONEDNN, reading_bytes
from txlcli.core.model.registry import make_model
from txlcli.core.reading.registry import make_reader, make_window_reader

CPU, V, B = torch.device("cpu"), 300, 3
SETTINGS = EvalSettings(seg_len=16, mem_len=64, batch_size=B)


def model_settings(*overrides):
    return recipe.resolve_text(RECIPE, "tiny.toml", overrides).model


def held_by_real_tensors(model, read):
    live = LiveBytes()
    with use_onednn(NO_ONEDNN), observed_results(live.observe):
        read(make_model(model, V).eval())
    return live.peak


def read_with_memory(network, precision="fp32"):
    reader = make_reader(network, SETTINGS, batch_size=B, precision=precision)
    tokens = torch.zeros(B, SETTINGS.seg_len, dtype=torch.int64)
    for _ in range(2 + SETTINGS.mem_len // SETTINGS.seg_len):
        reader.losses(reader.read(tokens), tokens)


def read_in_windows(network):
    reader = make_window_reader(network, SETTINGS.mem_len, windows=B, precision="fp32")
    tokens = torch.zeros(B, SETTINGS.mem_len, dtype=torch.int64)
    for _ in range(2):
        reader.reset()
        reader.losses(reader.read_last(tokens), tokens[:, -1:])


def forecast(model, **changes):
    return reading_bytes(model, V, SETTINGS, **{"batch_size": B, "device": CPU, **changes})


@pytest.fixture(autouse=True)
def without_onednn():
    with use_onednn(NO_ONEDNN):
        yield


@pytest.mark.parametrize(
    ("overrides", "precision"),
    [
        ([], "fp32"),
        ([], "bf16"),
        (["model.position=sinusoid"], "fp32"),
        (["model.memory_start=zeros"], "fp32"),
        (["model.memory_source=layer_output"], "fp32"),
        (
            [
                "model.arch=compressive",
                "model.compressed_len=16",
                "model.compression_rate=4",
                "model.memory_start=zeros",
                "eval.same_length=off",
                "train.seg_len=8",
            ],
            "fp32",
        ),
    ],
)
def test_reading_with_memory_holds_what_is_forecast(overrides, precision):
    model = model_settings(*overrides)
    real = held_by_real_tensors(model, lambda network: read_with_memory(network, precision))
    assert forecast(model, precision=precision) == pytest.approx(real, rel=0.02)


def test_windows_hold_what_is_forecast():
    model = model_settings()
    assert forecast(model, attn_len=SETTINGS.mem_len) == pytest.approx(
        held_by_real_tensors(model, read_in_windows), rel=0.02
    )


def test_a_state_takes_the_same_memory_at_any_memory_length():
    recipes = map(recipe.load, recipe.packaged_names())
    model = next(loaded.model for loaded in recipes if loaded.model.recurrent_state)
    longer = dataclasses.replace(SETTINGS, mem_len=640)
    assert reading_bytes(model, V, longer, batch_size=B, device=CPU) == forecast(model)


def test_a_tail_of_an_adaptive_softmax_counts_the_columns_it_needs_on_average():
    plain, adaptive = forecast(model_settings()), forecast(model_settings("model.cutoffs=[20]"))
    assert adaptive == pytest.approx(plain, rel=0.2)


@pytest.mark.slow
def test_longer_memories_more_lanes_and_higher_precision_need_more():
    model = model_settings()
    longer = dataclasses.replace(SETTINGS, mem_len=640)
    assert reading_bytes(model, V, longer, batch_size=B, device=CPU) > 3 * forecast(model)
    assert forecast(model, batch_size=2 * B) > 1.3 * forecast(model)
    assert reading_bytes(model, V, longer, batch_size=B, precision="bf16", device=CPU) < 0.7 * reading_bytes(
        model, V, longer, batch_size=B, device=CPU
    )


def test_scores_of_a_gpu_are_computed_at_once():
    long = EvalSettings(seg_len=512, mem_len=512)
    sizes = {
        device: reading_bytes(model_settings(), V, long, batch_size=8, device=torch.device(device))
        for device in ("cpu", "cuda")
    }
    assert sizes["cuda"] > sizes["cpu"]


def test_a_memory_larger_than_the_machine_is_counted():
    endless = dataclasses.replace(SETTINGS, mem_len=2_000_000_000)
    assert reading_bytes(model_settings(), V, endless, batch_size=B, device=CPU) > 1 << 40


def test_weights_that_onednn_lays_out_anew_are_held_twice():
    model = model_settings("model.d_model=256", "model.d_inner=256", "model.d_head=64")
    without = forecast(model)
    with use_onednn(OneDnnUse(fp32=True, bf16=False)):
        assert forecast(model) > without + 4 * 2 * 2 * 256 * 256  # two layers, two matrices of the feed-forward each
