"""The scripts for a GPU, at toy size on a CPU."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tests.conftest import hides_gpus
from tests.gpu import correctness, ptb, throughput
from txlcli.config import recipe

TEXTS = {"test_it_fails": "def test_one():\n    assert False\n", "test_no_import": "import missing_module\n"}


def run(script, directory, *options):
    """Exit code and results of a script."""
    app = typer.Typer()
    app.command()(script.main)
    file = directory / "results.json"
    ended = CliRunner().invoke(app, ["--device", "cpu", "--toy", "--json", str(file), *options])
    assert ended.exception is None or isinstance(ended.exception, SystemExit)
    return ended.exit_code, json.loads(file.read_text())


def test_correctness_runs_a_small_model_in_every_backend(tmp_path):
    code, found = run(correctness, tmp_path, "--only", "small run")
    assert (code, found["stage"], found["complete"]) == (0, "correctness", True)
    machine, row = found["rows"]
    assert machine["machine"]["name"].startswith("cpu (")
    assert row["auto_loss_nats"] == pytest.approx(row["sdpa_loss_nats"], rel=0.05)


@pytest.mark.parametrize("name", TEXTS)
def test_a_test_that_fails_or_cannot_be_imported_fails_its_row(tmp_path, name):
    file = tmp_path / f"{name}.py"
    file.write_text(TEXTS[name])
    with pytest.raises(AssertionError, match="1 of 1 cases failed"):
        correctness.run_tests(str(file), None, [].append)


def test_every_test_of_cuda_is_a_row_and_sees_the_gpu():
    tests = list(correctness.cases())
    assert len(tests) == len(set(tests)) > 30
    assert not any(hides_gpus([test]) for test, _ in tests)
    names = [(test.partition("::")[2], backend) for test, backend in tests]
    assert ("test_attention_and_its_six_gradients_are_those_of_float64", "triton") in names
    assert ("test_compiled_steps_have_the_losses_of_eager_ones", None) in names


@pytest.mark.slow
def test_throughput_times_a_training(tmp_path):
    code, found = run(throughput, tmp_path, "--only", "training enwik8, sdpa")
    assert (code, found["stage"], found["complete"]) == (0, "throughput", True)
    row = found["rows"][1]
    assert (row["attention"], row["precision"], row["tokens_per_step"]) == ("sdpa", "bf16", 3 * 8)
    assert row["tokens_per_s"] * row["ms_per_token"] == pytest.approx(1e3)


def test_evaluation_and_single_tokens_are_timed_with_their_own_lengths():
    _, segments = throughput.evaluation("wt103-nvidia", ("train.attention=sdpa",), 2, "cpu", toy=True)
    assert (segments["work"], segments["tokens_per_step"]) == ("evaluation, 2 lanes, L 8, M 24", 16)
    _, tokens = throughput.single_tokens("enwik8", ("eval.mem_len=16",), "cpu", toy=True)
    assert (tokens["work"], tokens["tokens_per_step"]) == ("one token at a time, L 1, M 16", 1)


@pytest.mark.slow
def test_ptb_trains_the_fastest_way_and_evaluates_the_run_it_keeps(tmp_path):
    code, found = run(ptb, tmp_path, "--keep", str(tmp_path / "kept"))
    assert (code, found["stage"], found["complete"]) == (0, "ptb", True)
    *_, auto, sdpa, training, evaluation = found["rows"]
    chosen = min(auto, sdpa, key=lambda row: row["ms_per_token"])["attention"]
    assert ("train.attention=sdpa" in training["changes"]) == (chosen == "sdpa")
    assert training["all_steps"]
    assert [point["step"] for point in training["curve"]["valid"]] == [6, 12]
    assert len(training["curve"]["train"]) == 12
    assert [row["mem_len"] for row in evaluation["test"]] == [8, 16]
    assert evaluation["best_mem_len"] in (8, 16)
    assert 1 < evaluation["test_ppl"] < 500
    assert (tmp_path / "kept" / "best.safetensors").exists()


def test_a_shortened_schedule_has_the_share_of_warm_up_of_the_recipe():
    settings = recipe.load("ptb")
    assert ptb.schedule(settings, 40_000) == ("train.max_steps=40000", "train.warmup_steps=2000", "log.every=200")
    assert ptb.schedule(settings, 100) == ("train.max_steps=100", "train.warmup_steps=5", "log.every=1")
