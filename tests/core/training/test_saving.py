"""Saving in the background: what a step waits for, the order of files, and what an error or a kill costs."""

import threading

import pytest
import torch

from tests.core.builders import V
from tests.core.training.runs import (
    assert_equal,
    new_training,
    reports_of,
    run,
    valids_of,
    weights,
)
from txlcli.core.measures.forecast import snapshot_bytes
from txlcli.core.training import checkpoint
from txlcli.core.training.reports import ValidReport
from txlcli.core.training.saving import Saver
from txlcli.errors import RunError

AT_MOST_S = 60


class SlowWriter:
    """Writes files once it is told to, and notes their names and steps."""

    def __init__(self):
        self.may_write = threading.Event()
        self.written = []

    def __call__(self, path, saved):
        assert self.may_write.wait(AT_MOST_S)
        checkpoint.save(path, saved)
        self.written.append((path.name, saved.state["step"]))


def test_training_continues_while_a_file_is_written_and_the_file_has_the_weights_of_its_step(tmp_path):
    write = SlowWriter()
    training = new_training(tmp_path, valid=False, valid_every=2, max_steps=3, saver=Saver(tmp_path, write=write))
    at_save, reports = None, reports_of(training)
    for report in reports:
        if report.step == 2:
            at_save = weights(training)
        if report.step == 3:
            break
    assert write.written == []
    assert training.step == 3
    write.may_write.set()
    reports.close()
    saved = checkpoint.load(training.saver.last_path)
    assert saved.state["step"] == 2
    for name, weight in saved.group("model").items():
        assert torch.equal(weight, at_save[name])
        assert not torch.equal(weight, weights(training)[name])


def test_each_validation_writes_each_file_once_and_the_end_writes_the_last_one(tmp_path):
    write = SlowWriter()
    write.may_write.set()
    reports = run(new_training(tmp_path, valid_every=2, max_steps=6, saver=Saver(tmp_path, write=write)))
    expected = []
    for report in valids_of(reports):
        expected += [("last.safetensors", report.step)] + [("best.safetensors", report.step)] * report.best
    assert {report.best for report in valids_of(reports)} >= {True}
    assert write.written == [*expected, ("last.safetensors", 6)]


def test_the_state_of_a_file_is_that_of_its_step(tmp_path):
    write, losses = SlowWriter(), [1.0]
    saver = Saver(tmp_path, write=write)
    saver.save(saver.last_path, {"model.a": torch.ones(3)}, {"step": 1, "losses": losses})
    losses.append(2.0)
    write.may_write.set()
    saver.wait()
    assert checkpoint.load(saver.last_path).state["losses"] == [1.0]


def full_disk(path, saved):
    raise RunError(f"{path}: the checkpoint cannot be written (No space left on device)")


def test_an_error_of_the_writer_ends_the_training_before_the_next_step(tmp_path):
    failed = threading.Event()

    def write(path, saved):
        failed.set()
        full_disk(path, saved)

    saver = Saver(tmp_path, write=write)
    training = new_training(tmp_path, valid=False, valid_every=2, max_steps=9, saver=saver)
    reports = reports_of(training)
    assert [next(reports).step for _ in range(3)] == [1, 2, 3]
    assert failed.wait(AT_MOST_S)
    saver.settle()
    with pytest.raises(RunError, match="No space left on device"):
        next(reports)
    assert training.step == 3


def test_a_stop_waits_for_the_files(tmp_path):
    write = SlowWriter()
    threading.Timer(0.3, write.may_write.set).start()
    run(new_training(tmp_path, valid=False, saver=Saver(tmp_path, write=write)), until=2)
    assert write.written == [("last.safetensors", 2)]


@pytest.mark.parametrize("average", ["none", "exponential"])
def test_without_memory_for_a_copy_the_step_waits_and_the_files_are_the_same(tmp_path, average):
    settings = {"valid_every": 2, "max_steps": 5, "average": average, "dropout": 0.3}
    for name, options in {"copied": {}, "in place": {"free": lambda: 1000}}.items():
        training = new_training(tmp_path / name, saver=Saver(tmp_path / name, **options), **settings)
        for report in reports_of(training):
            if name == "in place" and isinstance(report, ValidReport):
                assert checkpoint.load(training.saver.last_path).state["step"] == report.step
    for file in ("last.safetensors", "best.safetensors"):
        copied, in_place = (checkpoint.load(tmp_path / name / file) for name in ("copied", "in place"))
        assert copied.state == in_place.state
        assert_equal(copied.tensors, in_place.tensors)


@pytest.mark.parametrize("changed", [{}, {"optimizer": "sgd"}, {"average": "exponential"}])
def test_the_forecast_of_the_snapshot_is_the_size_of_what_is_saved(tmp_path, changed):
    training = new_training(tmp_path, valid=False, **changed)
    run(training, until=3)
    saved = checkpoint.load(training.saver.last_path).tensors
    large = [tensor.nbytes for name, tensor in saved.items() if not name.startswith("rng.") and tensor.dim()]
    sizes = training.model.settings, V, training.settings
    assert snapshot_bytes(*sizes) == sum(large)
