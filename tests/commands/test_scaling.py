"""`txl recipes scale`: forecasts for other GPUs."""

import itertools

import pytest

from tests.commands.novel import done, json_of
from tests.core.measures.test_gpus import LAYER_S, MEASURED, measured_step
from txlcli.core.measures.gpus import data_sheet_flops_per_s

GPU = ["--device-memory", "80GiB", "--bandwidth", "300GB/s", "--device-flops", "100TFLOP/s"]
SLOW = ["--device-memory", "16GiB", "--bandwidth", "1kB/s", "--device-flops", "1GFLOP/s"]
FOUR = ["--set", "train.batch_size=4"]


def scale(*options):
    """Return the whole forecast, and its rows by number of GPUs."""
    forecast = json_of("recipes", "scale", "tiny.toml", *FOUR, *options)
    return forecast, {row["devices"]: row for row in forecast["by_devices"]}


def test_the_memory_of_each_gpu_is_that_of_its_part_of_the_batch(here):
    forecast, rows = scale()
    assert {devices: row["batch_size_per_device"] for devices, row in rows.items()} == {1: 4, 2: 2, 4: 1}
    one, four = rows[1]["device_bytes"], rows[4]["device_bytes"]
    assert four["total"] == sum(size for part, size in four.items() if part != "total")
    assert four["parameters"] == four["gradients"] == four["optimizer"] // 2 == 4 * forecast["parameters"]
    assert one["memory"] == 4 * four["memory"]
    assert four["buckets"] == 0
    assert [row["exchanged_bytes"] for row in rows.values()] == [
        2 * (devices - 1) * 4 * forecast["parameters"] // devices for devices in rows
    ]
    assert (rows[4]["seconds"], rows[4]["fits"]) == (None, None)


def test_divided_state_and_weights_are_counted_with_what_is_gathered_and_exchanged(here):
    whole, zero, fsdp = (scale("--set", f"train.parallel={mode}")[1][2] for mode in ("ddp", "zero", "fsdp"))
    assert zero["exchanged_bytes"] == whole["exchanged_bytes"] == 2 * fsdp["exchanged_bytes"] // 3
    parts = scale("--set=train.parallel=fsdp", "--set=train.accumulate=2")[1][2]  # each gathers and sends for itself
    assert parts["exchanged_bytes"] == 2 * fsdp["exchanged_bytes"]
    whole, zero, fsdp = (row["device_bytes"] for row in (whole, zero, fsdp))
    assert 0.5 <= zero["optimizer"] / whole["optimizer"] < 0.6
    assert all(zero[part] == whole[part] for part in whole.keys() - {"optimizer", "total"})
    assert all(1 / 2 <= fsdp[part] / whole[part] < 0.6 for part in ("parameters", "gradients", "optimizer"))
    assert (whole["gathered"], fsdp["activations"]) == (0, whole["activations"])
    assert 0 < fsdp["gathered"] < 4 * whole["parameters"]
    table = done("recipes", "scale", "tiny.toml", "--set", "train.parallel=fsdp").stdout
    assert " gathered " in table
    assert " recurrent memory " in table


def test_time_is_that_of_operations_and_of_an_exchange_that_they_do_not_hide(here):
    forecast, rows = scale(*GPU)
    layers_s = 2 * LAYER_S
    product_share = 1e12 * MEASURED["product_tflops"] / data_sheet_flops_per_s(MEASURED["card"], "bf16")
    share = measured_step("ptb-memory")["share"] * product_share  # of the smallest model that was measured
    flops = 5 * forecast["training_flops_per_token"] / share
    assert rows[1]["step_s"] == pytest.approx(layers_s + 4 * flops / 1e14)
    assert rows[1]["share_of_peak"] == pytest.approx(
        20 * forecast["training_flops_per_token"] / rows[1]["step_s"] / 1e14
    )
    halves = scale(*GPU, "--set", "train.accumulate=2")[1][1]
    assert halves["step_s"] == pytest.approx(rows[1]["step_s"] + layers_s)  # the layers run twice
    recomputed = scale(*GPU, "--set", "train.recompute=layers")[1][1]
    assert recomputed["step_s"] == pytest.approx(4 / 3 * rows[1]["step_s"])
    assert rows[4]["tokens_per_s"] == pytest.approx(20 / rows[4]["step_s"])
    assert rows[4]["seconds"] == pytest.approx(7 * rows[4]["step_s"])
    slow = scale(*SLOW)[1][4]
    assert slow["exchanged_bytes"] / 1e3 < slow["step_s"] < layers_s + flops / 1e9 + slow["exchanged_bytes"] / 1e3


def test_more_gpus_are_never_slower_without_the_exchange():
    for name in ("enwik8", "wt103"):
        by_devices = json_of("recipes", "scale", name, "--device-flops", "989TFLOP/s")["by_devices"]
        times = [row["step_s"] for row in by_devices]
        assert times == sorted(times, reverse=True)
        assert all(1 < before / after <= 2 for before, after in itertools.pairwise(times))


def test_a_step_fits_up_to_a_share_of_the_memory(here):
    forecast, rows = scale()
    needed = rows[1]["device_bytes"]["total"] / forecast["usable_share"]
    assert [scale("--device-memory", f"{int(memory)}B")[1][1]["fits"] for memory in (needed - 9, needed + 9)] == [
        False, True
    ]  # fmt: skip


def test_settings_limit_the_number_of_gpus(here):
    for changes, counts in (
        (["train.batch_size=20"], [1, 2, 4, 8, 16]),
        (["train.batch_size=20", "train.accumulate=5"], [1, 2, 4]),
        (["train.deterministic=true"], [1]),  # needs a single GPU
    ):
        overrides = [f"--set={change}" for change in changes]
        rows = json_of("recipes", "scale", "tiny.toml", *overrides)["by_devices"]
        assert [row["devices"] for row in rows] == counts
