"""Rows that fail, hang or kill their process are recorded, and the next row runs."""

import json
import os
import signal
import subprocess
import time
import warnings
from pathlib import Path

import pytest

from tests.gpu.stage import Stage, first_rows


def number(value):
    return {"value": value, "process": os.getpid()}


def parts():
    yield {"first": 1}
    yield {"second": 2}
    raise ValueError("a third part is missing")


def warn():
    warnings.warn("layers are not compiled, and take longer: a reason", stacklevel=1)
    return {"tokens_per_s": 5.0}


def start_another():
    child = subprocess.Popen(["sleep", "600"])
    yield {"child": child.pid}
    time.sleep(60)


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


def test_a_failure_is_recorded_with_the_parts_before_it_and_the_next_row_runs(stage, tmp_path):
    assert stage.run("parts", parts) is None
    assert stage.run("killed", killed) is None
    assert stage.run("nan", number, value=float("nan")) is None
    assert stage.run("hang", hang, at_most_s=0.5) is None
    assert stage.run("next", number, value=7)["value"] == 7
    parts_, killed_, nan, hang_, _ = written(tmp_path)["rows"]
    assert (parts_["first"], parts_["second"], parts_["status"]) == (1, 2, "failed")
    assert "ValueError" in parts_["reason"]
    assert parts_["frames"][-1].endswith("in parts")
    assert "-9" in killed_["reason"]
    assert "JSON" in nan["reason"]
    assert "longer" in hang_["reason"]
    assert stage.end() == 1
    assert written(tmp_path)["failed"] == 4


def test_rows_that_failed_or_fell_back_are_looked_at_first_then_those_that_are_farthest_from_their_goal():
    rows = [
        {"row": row, "status": "passed", "tokens_per_s": rate, "goal": ("tokens_per_s", 10.0)}
        for row, rate in (("near", 9.0), ("far", 2.0), ("farther", 1.0), ("reached", 11.0))
    ]
    assert [row["row"] for row in first_rows(rows)] == ["farther", "far", "near"]
    rows += [{"row": "fallen", "status": "passed", "fell_back": ["a reason"]}, {"row": "killed", "status": "failed"}]
    assert [row["row"] for row in first_rows(rows)] == ["killed", "fallen", "farther"]


def test_a_process_that_a_row_started_ends_with_it(stage):
    stage.run("parent", start_another, at_most_s=3.0)
    child = stage.rows[0]["child"]
    deadline = time.monotonic() + 300
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_running(child)


def is_running(process):
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def test_a_row_that_fell_back_says_so_and_the_next_one_has_a_new_process(stage):
    first = stage.run("first", number, value=1)
    assert "not compiled" in stage.run("fallen", warn)["fell_back"][0]
    assert stage.run("next", number, value=1)["process"] != first["process"]
