"""A request for training that follows a restart of the processes resumes the run."""

import dataclasses
import os

import pytest

from txlcli.errors import UnknownNameError
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.resolve import EARLIER_RUN, remember_earlier_run, resolve
from txlcli.workflows.workspace import Workspace

OF_BYTE = TrainOptions(
    name="byte",
    overrides=("corpus.store=novel", "published.parameters=1"),
    max_steps=2,
    max_minutes=0.5,
    profile=3,
)
"""Options with which the run "byte" was begun, and limits."""


def test_the_limits_of_a_run_stay_after_a_restart(here):
    lines = []
    workspace = Workspace(reporter=Reporter(lambda text, done, total: lines.append(text)))
    request = resolve("tiny.toml", OF_BYTE, workspace, restarts=1)
    assert request.resumed.name == "byte"
    assert (request.options.max_steps, request.options.max_minutes, request.options.profile) == (2, 0.5, None)
    assert "restart 1" in lines[0]


def test_a_resumed_run_is_not_profiled_again_after_a_restart(here):
    options = TrainOptions(resume="byte", overrides=("train.max_steps=9",), profile=3)
    request = resolve(None, options, Workspace(), restarts=1)
    assert (request.resumed.name, request.options.profile) == ("byte", None)


def test_a_restart_resumes_a_run_although_the_one_that_it_began_with_is_gone(here):
    options = dataclasses.replace(OF_BYTE, begin_from="gone")
    assert resolve("tiny.toml", options, Workspace(), restarts=1).resumed.name == "byte"
    with pytest.raises(UnknownNameError):
        resolve("tiny.toml", options, Workspace())


@pytest.fixture
def environment(monkeypatch):
    monkeypatch.setenv(EARLIER_RUN, "")  # which restores it after the test


def test_a_run_that_had_the_name_before_is_not_resumed_after_a_restart(here, environment):
    workspace = Workspace()
    remember_earlier_run("byte", workspace.runs_dir)
    assert resolve("tiny.toml", OF_BYTE, workspace, restarts=1).resumed is None
    remember_earlier_run("word", workspace.runs_dir)
    assert resolve("tiny.toml", OF_BYTE, workspace, restarts=1).resumed.name == "byte"


def test_a_damaged_run_can_be_replaced_with_restarts(here, environment):
    (here / "runs/byte/run.json").write_text("{")
    remember_earlier_run("byte", Workspace().runs_dir)
    assert os.environ[EARLIER_RUN] == ""
