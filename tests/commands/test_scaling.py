"""Forecasts for other GPUs: `txl train --dry-run --devices` and `txl recipes scale`."""

import pytest

from tests.commands.novel import cells, done, json_of, refusal

GPU = ["--device-memory", "80GiB", "--bandwidth", "300GB/s", "--device-flops", "100TFLOP/s"]
SLOW = ["--device-memory", "16GiB", "--bandwidth", "1kB/s", "--device-flops", "1GFLOP/s"]


def devices(count, *options):
    return json_of("train", "tiny.toml", "--dry-run", "--devices", count, *options)


def test_the_memory_of_each_gpu_is_that_of_its_part_of_the_batch(here):
    one, three = devices(1), devices(3)
    assert (one["batch_size_per_device"], three["batch_size_per_device"]) == (3, 1)
    sizes = three["device_bytes"]
    assert sizes["total"] == sum(size for part, size in sizes.items() if part != "total")
    assert sizes["parameters"] == sizes["gradients"] == sizes["optimizer"] // 2 == 4 * three["parameters"]
    assert one["device_bytes"]["memory"] == 3 * sizes["memory"]
    assert one["device_bytes"]["logits"] == 3 * sizes["logits"] == 4 * 3 * 5 * three["vocab_size"]
    assert sizes["buckets"] == 0  # on GPUs they are the gradients
    assert [plan["exchanged_bytes"] for plan in (one, three)] == [0, 2 * 2 * 4 * three["parameters"] // 3]
    assert three["device"] == "3 GPUs"
    assert (three["seconds"], three["fits"]) == (None, None)
    assert not (here / "runs/tiny-2").exists()


def test_divided_state_and_weights_are_counted_with_what_is_gathered_and_exchanged(here):
    whole, zero, fsdp = (devices(2, "--set", f"train.parallel={mode}") for mode in ("ddp", "zero", "fsdp"))
    assert zero["exchanged_bytes"] == fsdp["exchanged_bytes"] == 3 * whole["exchanged_bytes"] // 2
    whole, zero, fsdp = (plan["device_bytes"] for plan in (whole, zero, fsdp))
    assert 0.5 <= zero["optimizer"] / whole["optimizer"] < 0.6
    assert all(zero[part] == whole[part] for part in whole.keys() - {"optimizer", "total"})
    assert all(1 / 2 <= fsdp[part] / whole[part] < 0.6 for part in ("parameters", "gradients", "optimizer"))
    assert (whole["gathered"], fsdp["activations"]) == (0, whole["activations"])
    assert 0 < fsdp["gathered"] < 4 * whole["parameters"]
    shown = done("train", "tiny.toml", "--dry-run", "--devices", 3, "--set", "train.parallel=fsdp").stdout
    assert "gathered weights" in shown
    assert "DistributedDataParallel" not in shown


def test_time_is_that_of_operations_and_of_an_exchange_that_they_do_not_hide(here):
    alone, three, slow = devices(1, *GPU), devices(3, *GPU), devices(3, *SLOW)
    flops = 5 * alone["training_flops_per_token"] / 0.022  # like the smallest model that was measured
    assert alone["step_s"] == pytest.approx(3 * flops / 1e14)
    recomputed = devices(1, *GPU, "--set", "train.recompute=layers")
    assert recomputed["step_s"] == pytest.approx(4 / 3 * alone["step_s"])
    assert slow["step_s"] < flops / 1e9 + slow["exchanged_bytes"] / 1e3
    assert slow["step_s"] > slow["exchanged_bytes"] / 1e3
    assert three["tokens_per_s"] == pytest.approx(15 / three["step_s"])
    assert three["seconds"] == pytest.approx(7 * three["step_s"])
    assert devices(3, *GPU, "--max-steps", 2)["seconds"] == pytest.approx(2 * three["step_s"])


@pytest.mark.slow
def test_a_step_that_does_not_fit_names_a_division_of_the_batch_that_does(here):
    needed = devices(1)["device_bytes"]["total"]
    divided = devices(1, "--set", "train.accumulate=3")["device_bytes"]["total"]
    memory = f"{int((needed + divided) / 2 / 0.8)}B"
    plan = devices(1, "--device-memory", memory)
    assert plan["fits"] is False
    assert plan["would_fit_bytes"] < needed
    changes = plan["would_fit"].split()
    assert devices(1, "--device-memory", memory, *changes)["fits"] is True
    assert (
        f"no; with {plan['would_fit']}"
        in done("train", "tiny.toml", "--dry-run", "--devices", 1, "--device-memory", memory).stdout
    )
    hopeless = devices(1, "--device-memory", "1kB")
    assert (hopeless["fits"], hopeless["would_fit"]) == (False, None)


@pytest.mark.slow
def test_a_recipe_is_scaled_in_powers_of_two_as_far_as_its_batch_divides(untouched):
    scale = json_of("recipes", "scale", "ptb", *GPU, "--set", "train.batch_size=20")
    rows = scale["by_devices"]
    assert [row["devices"] for row in rows] == [1, 2, 4, 8, 16]
    assert [row["batch_size_per_device"] for row in rows] == [20, 10, 5, 3, 2]
    assert len({row["device_bytes"]["parameters"] for row in rows}) == 1
    activations = [row["device_bytes"]["activations"] for row in rows]
    assert activations == sorted(activations, reverse=True)
    assert all(row["fits"] for row in rows)
    options = [*GPU, "--set", "train.batch_size=20"]
    alone = json_of("train", "ptb", "--dry-run", "--devices", 8, *options)
    assert {key: alone[key] for key in rows[3]} == rows[3]
    lines = cells(done("recipes", "scale", "ptb", *GPU, "--set", "train.batch_size=2"))
    assert [line[:2] for line in lines] == [["1", "2"], ["2", "1"]]
    assert [line[-1] for line in lines] == ["yes", "yes"]


@pytest.mark.parametrize(
    ("changes", "counts"),
    [
        pytest.param(["train.batch_size=20", "train.accumulate=5"], [1, 2, 4], marks=pytest.mark.slow),
        (["train.deterministic=true"], [1]),  # needs a single GPU
    ],
)
def test_accumulation_and_settings_of_a_single_gpu_limit_the_number_of_gpus(untouched, changes, counts):
    overrides = [part for change in changes for part in ("--set", change)]
    assert [row["devices"] for row in json_of("recipes", "scale", "ptb", *overrides)["by_devices"]] == counts


ON_GPUS, SINGLE = "--devices forecasts training on GPUs", "train.deterministic needs a single GPU"
TWO = 'train.parallel = "zero" needs at least two GPUs'


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--devices", 2, "--processes", 2], "--devices forecasts one process per GPU; leave out --processes"),
        (["--devices", 2, "--device", "cpu"], f"{ON_GPUS}; leave out --device cpu, or use --processes"),
        (["--devices", 4], "train.batch_size = 3 is too small for 4 processes; use fewer of them"),
        (
            ["--devices", 2, "--set", "train.deterministic=true"],
            f"{SINGLE}; --set train.deterministic=false, or --devices 1",
        ),
        (["--devices", 1, "--set", "train.parallel=zero"], f"{TWO}; give --devices 2 or more"),
    ],
)
def test_options_that_do_not_belong_together_are_rejected(untouched, options, message):
    vocab_size = ["--set", "published.vocab_size=300"]
    assert refusal("train", "tiny.toml", "--dry-run", *options, *vocab_size) == message
