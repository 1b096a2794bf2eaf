"""Experiment trackers, offline, with the packages that are installed."""

import json
import sys

import pytest

from tests.commands.novel import HERE, RecordingReporter, card, refusal, reports
from txlcli.config import recipe
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.workflows.training import trackers
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.run import train_recipe
from txlcli.workflows.workspace import Workspace

STEPS = {"train": [2, 4, 6, 7], "valid": [4, 7]}


def workspace():
    return Workspace(**HERE, reporter=RecordingReporter())


def train_in_two_parts(name):
    """Train to step 4, die before the next save, and resume."""
    setting = [f"log.to={name}"]
    train_recipe("tiny.toml", TrainOptions(overrides=setting, max_steps=4), workspace())
    last = HERE["runs_dir"] / "tiny/last.safetensors"
    at_step_4 = last.read_bytes()
    for _ in range(2):  # the first of them dies before it saves
        last.write_bytes(at_step_4)
        resumed = workspace()
        train_recipe(None, TrainOptions(resume="tiny"), resumed)
        assert not [message for message in resumed.reporter.messages if "failed" in message]


class Recording:
    def __init__(self, run, after):
        self.run, self.after = run, after
        self.values, self.closed = [], False
        type(self).last = self

    def __enter__(self):
        return self.log

    def __exit__(self, *_):
        self.close()

    def log(self, values, step):
        self.values.append((step, values))

    def close(self):
        self.closed = True


@pytest.fixture
def backend(monkeypatch):
    """Replace wandb by a tracker that the test chooses."""

    def replace(cls):
        monkeypatch.setitem(trackers.BACKENDS, "wandb", cls)
        monkeypatch.setitem(sys.modules, "wandb", json)  # a module that is installed
        return cls

    return replace


def test_a_tracker_receives_name_settings_and_metrics_and_is_continued_by_a_resumed_run(here, backend):
    recording = backend(Recording)
    train_recipe("tiny.toml", TrainOptions(overrides=("log.to=wandb",), name="mine"), workspace())
    tracker = recording.last
    assert (tracker.run.name, tracker.after) == ("mine", 0)
    assert recipe.to_table(tracker.run.settings) == card("runs/mine")["settings"]
    assert tracker.closed
    for (step, values), line in zip(tracker.values, reports("runs/mine"), strict=True):
        assert step == line["step"]
        assert values[f"{line['kind']}/loss_nats"] == line["loss_nats"]
        assert not set(values) & {f"{line['kind']}/{key}" for key in ("kind", "step", "best", "averaged")}
    train_recipe(None, TrainOptions(resume="mine", overrides=("train.max_steps=9",)), workspace())
    assert recording.last.after == 7


@pytest.mark.parametrize("method", ["__init__", "log", "close"])
def test_a_failing_tracker_is_reported_once_and_training_continues(here, backend, method):
    def fail(*_):
        raise OSError("no network\nand more")

    backend(type("Failing", (Recording,), {method: fail}))
    place = workspace()
    assert train_recipe("tiny.toml", TrainOptions(overrides=("log.to=wandb",)), place).step == 7
    told = [message for message in place.reporter.messages if "wandb" in message]
    assert told == ["wandb failed (no network); training continues without it"]
    assert len(reports("runs/tiny")) == 6


@pytest.mark.parametrize("name", trackers.BACKENDS)
def test_a_missing_package_is_rejected_before_anything_is_written(here, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    expected = f'log.to = "{name}" needs the {name} package; pip install ".[{name}]"'
    assert refusal("train", "tiny.toml", "--set", f"log.to={name}") == expected
    with pytest.raises(UsageError, match="needs the"):
        train_recipe(None, TrainOptions(resume="byte", overrides=(f"log.to={name}", "train.max_steps=9")), workspace())
    assert not (here / "runs/tiny").exists()
    assert card("runs/byte")["settings"]["train"]["max_steps"] == 7


def test_tensorboard_has_the_settings_and_each_step_once(here):
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train_in_two_parts("tensorboard")
    events = accumulator.EventAccumulator(str(here / "runs/tiny")).Reload()
    for kind, steps in STEPS.items():
        assert [point.step for point in events.Scalars(f"{kind}/loss_nats")] == steps
    [text] = events.Tensors("settings/text_summary")[-1].tensor_proto.string_val
    assert '"batch_size": 3' in text.decode()


def test_wandb_continues_one_offline_run(here, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    train_in_two_parts("wandb")
    tracked_id = trackers.tracked_id(run_directory.find("tiny", HERE["runs_dir"]))
    files = list((here / "runs/tiny/wandb").glob(f"offline-run-*-{tracked_id}/run-{tracked_id}.wandb"))
    assert files
    assert any(b"train/loss_nats" in file.read_bytes() for file in files)
