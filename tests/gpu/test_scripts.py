"""The scripts for a GPU, at toy size on a CPU."""

import json

import pytest
import typer
from typer.testing import CliRunner

from tests.gpu import correctness
from tests.gpu.stage import Skip

TEXTS = {"test_it_fails": "def test_one():\n    assert False\n", "test_no_import": "import missing_module\n"}


def run(script, folder, *options):
    """Exit code and results of a script."""
    app = typer.Typer()
    app.command()(script.main)
    file = folder / "results.json"
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
        list(correctness.run_tests(str(file)))


def test_cases_of_a_test_are_counted(tmp_path):
    file = tmp_path / "test_cases.py"
    file.write_text(
        "import pytest\n\n"
        "@pytest.mark.parametrize('x', [1, 2, 3])\n"
        "def test_one(x):\n    if x == 2:\n        pytest.skip('no two')\n\n"
        "def test_two():\n    pytest.skip('nothing')\n"
    )
    one, two = correctness.names_of_tests([file])
    assert list(correctness.run_tests(one)) == [{"passed": 2, "failed": {}, "skipped": {"no two": 1}}]
    with pytest.raises(Skip, match="nothing"):
        list(correctness.run_tests(two))


def test_every_test_of_cuda_is_a_row():
    names = [test.partition("::")[2] for test in correctness.names_of_tests()]
    assert len(names) == len(set(names)) > 20
    assert "test_attention_and_its_six_gradients_are_those_of_float64" in names
