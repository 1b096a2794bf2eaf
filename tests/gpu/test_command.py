"""`python -m tests.gpu` at toy size on a CPU."""

import collections
import json
from importlib import metadata

import pytest
import torch

from tests.conftest import hides_gpus
from tests.gpu import __main__ as command
from tests.gpu import parallel_tests, ptb, test_wheels
from tests.gpu.rows import Captures
from tests.gpu.small_runs import no_graph
from tests.gpu.wheels import EVERY_PART
from txlcli.config import recipe
from txlcli.errors import UsageError
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe

FAILS = {"test_it_fails": "def test_one():\n    assert False\n", "test_no_import": "import missing_module\n"}
ONE_HANGS = "import time\n\ndef test_quick():\n    pass\n\ndef test_slow():\n    time.sleep(600)\n"


HIDING = """
import sys

class Finder:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name in {} else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Finder, sys.meta_path)
"""
"""A module that Python imports when it starts; modules whose names are filled in are then not found."""


def run(directory, *options):
    file = directory / "results.json"
    code = command.main(["--device", "cpu", "--toy", "--json", str(file), *options])
    return code, json.loads(file.read_text())


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    """Rows of a call, by name, in processes that find no package but those that `wheels` lists for every part."""
    directory = tmp_path_factory.mktemp("call")
    listed = test_wheels.with_needs(test_wheels.names_of(EVERY_PART))
    hidden = []
    for module, owners in metadata.packages_distributions().items():
        if module not in test_wheels.OWN and not listed & set(map(test_wheels.name_of, owners)):
            hidden.append(module)
    (directory / "sitecustomize.py").write_text(HIDING.format(hidden))
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(directory))
        code, found = run(directory, "smoke", "enwik8", "reading", "bf16")
    assert (code, found["complete"]) == (0, True)
    return {row["row"]: row for row in found["rows"]}


def test_a_test_that_fails_or_cannot_be_imported_fails_the_row(tmp_path):
    for name, text in FAILS.items():
        (tmp_path / f"{name}.py").write_text(text)
    with pytest.raises(AssertionError, match="2 of 2 tests failed"):
        list(parallel_tests.run(list(tmp_path.glob("*.py")), 60))


def test_tests_that_end_pytest_fail_the_row(tmp_path):
    ends = "import os, signal\n\ndef test_ends():\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    (tmp_path / "test_one_ends.py").write_text(f"def test_quick():\n    pass\n\n{ends}")
    with pytest.raises(RuntimeError, match="pytest ended with -9"):
        list(parallel_tests.run(list(tmp_path.glob("*.py")), 60))


@pytest.mark.slow
def test_tests_that_have_ended_are_results_when_the_limit_stops_another(tmp_path):
    file = tmp_path / "test_one_hangs.py"
    file.write_text(ONE_HANGS)
    found = []
    with pytest.raises(AssertionError, match="test_slow"):
        collections.deque(map(found.append, parallel_tests.run([file], 15)), maxlen=0)
    assert found[-1]["tests_passed"] == 1
    assert [test.partition("::")[2] for test in found[-1]["running"]] == ["test_slow"]


def test_tests_of_cuda_see_the_gpu():
    files = list(command.DIRECTORY.glob("test_cuda_*.py"))
    assert len(files) > 2
    assert not hides_gpus(list(map(str, files)))


def test_rows_of_training_and_reading_have_the_lengths_and_kernels_of_their_recipe(rows):
    training = rows["training enwik8"]
    assert training["tokens_per_step"] == 3 * 8
    assert (training["graphs"], training["graphs_in_timed_steps"], training["replays_per_timed_step"]) == (2, 0, 2)
    assert sum(training["ms_by_kind"].values()) == pytest.approx(training["profiled_ms"])
    segments, tokens = rows["evaluation enwik8, B 10"], rows["single tokens enwik8, M 1600"]
    assert (segments["tokens_per_step"], tokens["tokens_per_step"]) == (24, 1)
    assert segments["path"] == tokens["path"] == "tiles, not compiled, not captured"


def test_a_graph_that_cannot_be_captured_is_not_counted():
    captures = Captures(no_graph)
    with pytest.raises(UsageError, match="no graphs here"):
        captures(list, torch.device("cpu"))
    assert captures.captured == 0
    assert "no graphs here" in captures.failures[0]


def test_the_default_path_equals_eager_steps_and_the_definition(rows):
    smoke = rows["smoke"]
    assert smoke["path"] == "tiles, not compiled, captured"
    assert 0 < smoke["errors"]["loss from reference"] < 1e-3


def test_bf16_is_as_far_from_float64_as_autocast(rows):
    steps = rows["losses in bf16"]
    assert steps["steps"] == 12
    assert 0 < steps["difference_nats"] < steps["spread_of_seeds_nats"]
    assert 1e-3 < steps["gradient_errors"]["default"] < 1e-2  # three digits
    assert steps["gradient_errors"]["float64"] == 0


@pytest.mark.slow
def test_ptb_continues_the_run_of_an_earlier_call_and_evaluates_it(tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    ptb.prepare_toy(kept)
    changes = ["train.precision=bf16", *ptb.schedule(recipe.load("ptb"), ptb.TOY_STEPS), *ptb.TOY_CHANGES]
    (kept / "plan.json").write_text(json.dumps(["ptb", changes]))
    train_recipe("ptb", TrainOptions(name=ptb.RUN, overrides=tuple(changes), max_steps=5), ptb.workspace(kept, "cpu"))
    code, found = run(tmp_path, "ptb", "--keep", str(kept))
    assert (code, found["complete"]) == (0, True)
    _, training, evaluation = found["rows"]
    assert (training["all_steps"], training["steps"]) == (True, 12)
    assert [point["step"] for point in training["curve"]["valid"]] == [6, 12]
    assert evaluation["test_ppl"] == evaluation["readings"][evaluation["best"]]["test_ppl"]
    assert run(tmp_path, "ptb", "--keep", str(kept))[1]["rows"][2]["test_ppl"] == evaluation["test_ppl"]
