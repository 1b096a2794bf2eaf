"""The environments of torchrun, srun and mpirun are understood; contradictions are refused."""

import pytest

from txlcli.errors import UsageError
from txlcli.system import launcher
from txlcli.system.launcher import ALONE, Place

TORCHRUN = {"WORLD_SIZE": "8", "RANK": "5", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "4"}
MEETING = {"MASTER_ADDR": "gpu03", "MASTER_PORT": "1234"}
SRUN = {
    **{"SLURM_JOB_ID": "70123", "SLURM_STEP_NUM_TASKS": "7", "SLURM_PROCID": "5", "SLURM_LOCALID": "1"},
    **{"SLURM_STEP_TASKS_PER_NODE": "4,3", "SLURM_STEP_NODELIST": "gpu[03-04],cpu1"},
}
OPEN_MPI = {
    **{"OMPI_COMM_WORLD_SIZE": "3", "OMPI_COMM_WORLD_RANK": "2"},
    **{"OMPI_COMM_WORLD_LOCAL_RANK": "2", "OMPI_COMM_WORLD_LOCAL_SIZE": "3"},
}
HYDRA = {"PMI_SIZE": "3", "PMI_RANK": "1", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (TORCHRUN, Place("torchrun", 8, 5, 1, 4)),
        ({"WORLD_SIZE": "3", "RANK": "2"}, Place("torchrun", 3, 2, 2, 3)),
        (SRUN, Place("srun", 7, 5, 1, 4)),
        (SRUN | {"SLURM_STEP_TASKS_PER_NODE": "4(x2)"}, Place("srun", 7, 5, 1, 4)),
        (OPEN_MPI, Place("mpirun", 3, 2, 2, 3)),
        (HYDRA, Place("mpirun", 3, 1, 0, 2)),
    ],
)
def test_every_launcher_names_the_place_of_a_process(environment, expected):
    assert launcher.place(environment) == expected


def test_torchrun_within_a_job_of_srun_counts():
    assert launcher.place(SRUN | TORCHRUN) == launcher.place(TORCHRUN)
    assert launcher.place(SRUN | {"RANK": "0", "WORLD_SIZE": "1"}) == ALONE


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
    assert launcher.place(environment) == ALONE


@pytest.mark.parametrize(
    ("environment", "error"),
    [
        ({"RANK": "x", "WORLD_SIZE": "2"}, r'RANK="x" is not a number; start the processes with torchrun, or unset'),
        ({"RANK": "0", "WORLD_SIZE": "2(x3)"}, r'WORLD_SIZE="2\(x3\)" is not a number'),
        ({"RANK": "2", "WORLD_SIZE": "2"}, r"RANK=2 and WORLD_SIZE=2 contradict each other; start the processes"),
        ({"RANK": "0", "WORLD_SIZE": "0"}, r"RANK=0 and WORLD_SIZE=0 contradict each other"),
        (TORCHRUN | {"LOCAL_RANK": "-1"}, r'LOCAL_RANK="-1" is not a number'),
    ],
)
def test_a_wrong_environment_is_rejected(environment, error):
    with pytest.raises(UsageError, match=error):
        launcher.place(environment)


@pytest.mark.parametrize(
    ("environment", "url"),
    [
        (TORCHRUN | MEETING, "env://"),
        (SRUN | MEETING, "tcp://gpu03:1234"),
        (SRUN, "tcp://gpu03:30123"),
        (SRUN | {"SLURM_STEP_NODELIST": "host7"}, "tcp://host7:30123"),
        (HYDRA | MEETING, "tcp://gpu03:1234"),
    ],
)
def test_the_processes_meet_at_the_machine_of_rank_0(environment, url):
    assert launcher.rendezvous_url(environment) == url


def test_mpirun_on_one_machine_needs_no_address():
    host, port = launcher.rendezvous_url(OPEN_MPI).removeprefix("tcp://").split(":")
    assert host == "localhost"
    assert 20_000 <= int(port) < 40_000


@pytest.mark.parametrize(
    ("environment", "missing"),
    [
        (TORCHRUN, "MASTER_ADDR and MASTER_PORT; set MASTER_ADDR to the machine of rank 0"),
        (TORCHRUN | {"MASTER_ADDR": "gpu03"}, "MASTER_PORT; set"),
        (HYDRA, "MASTER_ADDR and MASTER_PORT; set"),
        (SRUN | {"SLURM_STEP_NODELIST": ""}, "MASTER_ADDR; set"),
    ],
)
def test_processes_without_an_address_to_meet_at_are_rejected(environment, missing):
    with pytest.raises(UsageError, match=f"processes cannot meet without {missing}"):
        launcher.rendezvous_url(environment)
