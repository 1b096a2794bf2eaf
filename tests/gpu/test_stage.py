"""Rows that fail, hang or kill their process are recorded, and the next row runs."""

import json
import os
import signal
import time

import pytest

from tests.gpu.stage import Skip, Stage


def number(value):
    return {"value": value, "process": os.getpid()}


def parts():
    yield {"first": 1}
    yield {"second": 2}
    raise ValueError("a third part is missing")


def skip():
    raise Skip("no such device")


def killed():
    os.kill(os.getpid(), signal.SIGKILL)


def hang():
    time.sleep(60)


@pytest.fixture
def stage(tmp_path):
    stage = Stage(facts={"device": "none"}, json_file=tmp_path / "results.json", minutes=1)
    yield stage
    stage.end()


def written(tmp_path):
    return json.loads((tmp_path / "results.json").read_text())


def test_a_failure_is_recorded_with_the_parts_before_it_and_the_next_row_runs(stage, tmp_path, capsys):
    assert stage.run("parts", parts) is None
    assert stage.run("killed", killed) is None
    assert stage.run("nan", number, value=float("nan")) is None
    assert stage.run("next", number, value=7)["value"] == 7
    parts_, killed_, nan, _ = written(tmp_path)["rows"]
    assert (parts_["first"], parts_["second"], parts_["status"]) == (1, 2, "failed")
    assert parts_["reason"] == "ValueError: a third part is missing"
    assert "in parts" in parts_["details"]
    assert killed_["reason"] == "its process ended with exit code -9"
    assert "not JSON compliant" in nan["reason"]
    assert stage.end() == 1
    assert written(tmp_path)["failed"] == 3
    assert "its process ended with exit code -9" in capsys.readouterr().out


def test_a_row_that_takes_too_long_fails_and_the_next_one_runs(stage):
    assert stage.run("hang", hang, at_most_s=0.5) is None
    assert (stage.rows[0]["status"], stage.rows[0]["reason"]) == ("failed", "it took longer than 0.5 s")
    assert stage.run("next", number, value=7)["value"] == 7
