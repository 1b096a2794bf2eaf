"""The benchmarks run; what they measure belongs to the machine."""

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from tests.benchmarks import launches
from tests.benchmarks.comparisons import Comparison


def test_without_a_fake_device_one_line_says_why_no_launch_is_counted(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(SystemExit) as stopped:
        launches.main()
    assert stopped.value.code == "error: the fake device needs Linux and g++"


def invoke(module, *options):
    app = typer.Typer()
    app.command()(module.main)
    return CliRunner().invoke(app, [str(option) for option in (*options, "--quick")])


def output_of(module, *options):
    result = invoke(module, *options)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def benchmark():
    pytest.importorskip("transformers", reason='the peer is not installed: pip install -e ".[peer]"')
    from tests.benchmarks import peer

    return peer


def test_txl_and_the_peer_take_turns_at_the_same_function(benchmark):
    names = "training,eval10,token1600,wt103-training,wt103-eval"
    told = json.loads(output_of(benchmark, "--rows", names, "--repeat", 2, "--json"))
    assert [row["row"] for row in told["rows"]] == [name for name in names.split(",") for _ in range(2)]
    assert [row["precision"] for row in told["rows"]] == ["fp32", "bf16"] * 5
    for row in told["rows"]:
        low, high = row["ratio_low_high"]
        assert 0 < low <= row["ratio"] <= high
        assert 0 < row["share_of_peak"] < 1
        if row["largest_difference_nats"] is not None:
            assert row["largest_difference_nats"] < (1e-4 if row["precision"] == "fp32" else 0.02)


def test_every_row_has_a_target_and_the_sizes_of_its_recipe(benchmark):
    from tests.benchmarks.contestants import our_settings
    from tests.benchmarks.rows import ROWS, quick
    from txlcli.config import recipe
    from txlcli.core.architectures.registry import count_parameters

    for name, row in ROWS.items():
        published = recipe.load("wt103" if "wt103" in name else "enwik8").published
        settings = our_settings(row.work, training=row.kind != "reading")
        assert published.vocab_size == row.work.vocab_size
        assert count_parameters(settings, row.work.vocab_size) == published.parameters, name
        assert "cpu" not in row.devices or row.targets["fp32"] > 0
        assert quick(row).work.config["n_layer"] == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux can tell")
def test_the_memory_of_a_step_is_what_it_holds_above_the_model(benchmark):
    from tests.benchmarks import memory

    before, peak = memory.measure("memory", "txl", "fp32", quick=True)
    assert 1 << 20 < before <= peak < 1 << 34


def test_a_step_in_bf16_multiplies_in_bf16(benchmark):
    from tests.benchmarks import contestants
    from tests.benchmarks.rows import ROWS, quick

    work = quick(ROWS["training"]).work
    model = contestants.fresh_model("txl", work)
    products = []
    model.layers[0].feed_forward.ff_1.register_forward_hook(lambda _layer, _rows, product: products.append(product))
    step = contestants.our_step(model, work)
    for precision in ("fp32", "bf16", "fp32"):
        step(precision)
    assert [product.dtype for product in products] == [torch.float32, torch.bfloat16, torch.float32]


def test_a_comparison_with_the_peer_in_bf16_names_both_precisions(benchmark):
    comparison = Comparison(("fp32",), "bf16")
    (found,) = benchmark.compare("token1600", comparison, torch.device("cpu"), 1, quick=True)
    assert (found["precision"], found["peer_precision"]) == ("fp32", "bf16")
    assert 0 < found["largest_difference_nats"] < 0.05
