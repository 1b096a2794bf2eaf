"""The same seed, machine and number of threads give the same files, bit for bit."""

import json
from pathlib import Path

import pytest

from tests.cards import read_log
from tests.commands.novel import Saved, done, start
from tests.commands.processes import ended

TIMES = ("tokens_per_s", "seconds")
WIDE = ("--set", "model.d_model=64", "--set", "model.d_inner=256", "--set", "model.dropout=0.1")


def train(name, *changes, threads=1):
    environment = {"OMP_NUM_THREADS": str(threads)}
    ended(start("train", "tiny.toml", "--name", name, *WIDE, *changes, environment=environment), 0)
    return metrics_of(Path("runs", name))


def metrics_of(directory):
    lines = read_log(directory / "metrics.jsonl")
    return [{key: value for key, value in line.items() if key not in TIMES} for line in lines]


@pytest.fixture(scope="module")
def one(trained_novel):
    """The folder of a run that the trainings of the tests are compared with."""
    runs = trained_novel.parent / "compared"
    places = ("--data-dir", trained_novel / "data", "--runs-dir", runs)
    ended(start("train", trained_novel / "tiny.toml", "--name", "one", *WIDE, *places), 0)
    return runs / "one"


def test_a_training_with_the_same_seed_has_the_same_metrics_and_weights(here, one):
    done("train", "tiny.toml", "--name", "two", *WIDE)  # in this process, which has used PyTorch before
    assert metrics_of(Path("runs/two")) == metrics_of(one)
    for file in ("last.safetensors", "best.safetensors"):
        assert Saved(one / file) == Saved(Path("runs/two", file))


@pytest.mark.slow
def test_deterministic_training_changes_no_number_on_a_cpu(here, one):
    assert train("two", "--set", "train.deterministic=true") == metrics_of(one)


@pytest.mark.slow
def test_another_number_of_threads_changes_sums_by_their_rounding_only(here, one):
    of_one, two = metrics_of(one), train("two", threads=2)
    assert [line["step"] for line in of_one] == [line["step"] for line in two]
    assert [line["loss_nats"] for line in of_one] == pytest.approx([line["loss_nats"] for line in two], rel=1e-5)


def test_a_store_that_is_prepared_twice_is_the_same_file(here):
    for directory in ("one", "two"):
        done("prepare", "novel", "--name", "again", "--data-dir", directory)
    assert Path("one/again.h5").read_bytes() == Path("two/again.h5").read_bytes()


def test_two_evaluations_give_the_same_losses(here):
    for name in ("one", "two"):
        done("eval", "byte", "--mem-len", "0,5", "--losses", f"{name}.h5")
    assert Path("one.h5").read_bytes() == Path("two.h5").read_bytes()
    times = {"slowdown", "processor_share", "times_trusted"}
    rows = []
    for row in read_log("runs/byte/evals.jsonl"):
        rows.append({key: value for key, value in row.items() if "ms_per" not in key and key not in times})
    half = len(rows) // 2
    for first, second in zip(rows[:half], rows[half:], strict=True):
        assert json.dumps(first | {"when": ""}) == json.dumps(second | {"when": ""})
