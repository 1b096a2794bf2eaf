"""Experiment trackers, offline, with the packages that are installed."""

import importlib
import sys

import pytest

from tests.commands.novel import HERE, RecordingReporter, card, refusal, reports
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


FAKE = """
import types

Settings = dict
FAILS = None  # or "init", "log" or "exit"
seen = []

def note(kind, *values):
    seen.append((kind, *values))
    if kind == FAILS:
        raise OSError("no network\\nand more")

def init(**options):
    note("init", options)
    return types.SimpleNamespace(
        config=types.SimpleNamespace(update=lambda *_, **__: None),
        log=lambda values, step: note("log", step, values),
        finish=lambda: note("exit"),
    )
"""


@pytest.fixture
def wandb(tmp_path_factory, monkeypatch):
    """Install a package "wandb" that keeps what it is given."""
    directory = tmp_path_factory.mktemp("packages")
    (directory / "wandb.py").write_text(FAKE)
    monkeypatch.syspath_prepend(directory)
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    yield importlib.import_module("wandb")
    del sys.modules["wandb"]


def test_a_tracker_receives_name_settings_and_metrics_and_is_continued_by_a_resumed_run(here, wandb):
    train_recipe("tiny.toml", TrainOptions(overrides=("log.to=wandb",), name="mine"), workspace())
    (_, given), *logged, ended = wandb.seen
    assert (given["name"], given["config"]) == ("mine", card("runs/mine")["settings"])
    assert ended == ("exit",)
    for (_, step, values), line in zip(logged, reports("runs/mine"), strict=True):
        assert step == line["step"]
        assert values[f"{line['kind']}/loss_nats"] == line["loss_nats"]
        assert not set(values) & {f"{line['kind']}/{key}" for key in ("kind", "step", "best", "averaged", "after")}
    train_recipe(None, TrainOptions(resume="mine", overrides=("train.max_steps=9",)), workspace())
    (again,) = (entry[1] for entry in wandb.seen[len(logged) + 2 :] if entry[0] == "init")
    assert (again["id"], again["resume"]) == (given["id"], "allow")


@pytest.mark.parametrize("call", ["init", "log", "exit"])
def test_a_failing_tracker_is_reported_once_and_training_continues(here, wandb, call):
    wandb.FAILS = call
    place = workspace()
    assert train_recipe("tiny.toml", TrainOptions(overrides=("log.to=wandb",)), place).step == 7
    (told,) = (message for message in place.reporter.messages if "wandb" in message)
    assert told.startswith("wandb failed (no network)")
    assert len(reports("runs/tiny")) == 6


@pytest.mark.parametrize("name", trackers.TRACKERS)
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
