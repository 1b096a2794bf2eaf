"""The environment of torchrun is understood; contradictions and other launchers are rejected."""

import os
import subprocess
import sys

import pytest

from txlcli.errors import UsageError
from txlcli.system import launcher
from txlcli.system.launcher import ALONE, Place

TORCHRUN = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}


def test_the_variables_of_torchrun_tell_the_place_of_a_process_and_who_started_it():
    assert launcher.place_in(TORCHRUN | {"SLURM_STEP_NUM_TASKS": "7"}) == Place("torchrun", 8, 5, 1, 4)
    assert launcher.place_in({"WORLD_SIZE": "3", "RANK": "2"}) == Place("torchrun", 3, 2, 2, 3)
    assert launcher.place_in(TORCHRUN | {launcher.STARTED: "8"}) == Place("txl", 8, 5, 1, 4)


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"WORLD_SIZE": "4"},  # some clusters set it for everything
        {"WORLD_SIZE": "1", "RANK": "0"},
        {"SLURM_NTASKS": "8", "SLURM_PROCID": "0"},  # the batch script itself
    ],
)
def test_a_single_process_is_alone(environment):
    assert launcher.place_in(environment) == ALONE


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK=x, WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "2(x3)"}, "RANK=0, WORLD_SIZE=2"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2, WORLD_SIZE=2"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, "RANK=0, WORLD_SIZE=0"),
        ({"SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "5"}, "srun has started 7 processes"),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, "mpirun has started 3 processes"),
        (TORCHRUN | {"LOCAL_RANK": "-1"}, "RANK=5, WORLD_SIZE=8"),
    ],
)
def test_a_wrong_environment_is_rejected(environment, error):
    with pytest.raises(UsageError, match=error):
        launcher.place_in(environment)


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "False"),
        ({launcher.TORCHRUN: "1"}, "True"),
        ({launcher.STARTED: "2"}, "True"),
        ({launcher.STARTED: "1", "WORLD_SIZE": "1"}, "True"),  # of --restarts
    ],
)
def test_only_a_process_with_a_launcher_ends_with_the_one_that_started_it(variables, expected):
    program = (
        "import os, time; from txlcli.system import launcher; began_in = os.getppid(); print('began', flush=True)\n"
        "while os.getppid() == began_in: time.sleep(0.01)\n"
        "print(launcher.is_orphan())"
    )
    shell = ["sh", "-c", '"$0" -c "$1" & read line', sys.executable, program]
    environment = os.environ | {"RANK": "0", "WORLD_SIZE": "2", **variables}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(shell, env=environment, **pipes) as process:
        assert process.stdout.readline() == "began\n"
        process.stdin.close()
        assert process.stdout.read() == f"{expected}\n"


def test_more_processes_than_a_machine_can_run_are_rejected_before_they_start():
    with pytest.raises(UsageError, match="use at most"):
        launcher.start_processes(1_000_000, [], rank_timeout_s=1.0)
