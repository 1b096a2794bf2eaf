"""Several processes of one command: starts them, or reads the environment of torchrun, which did."""

import functools
import logging
import math
import os
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from txlcli.errors import TrainingError, UsageError
from txlcli.system import processors

if TYPE_CHECKING:
    from torch.distributed.elastic.multiprocessing.errors import ProcessFailure

RESUME = "resume from the last checkpoint with `resume`, if there is one"
"""Next step after a process of a training run is lost."""
SECONDS_TO_EXPLAIN = 15
"""Time until the processes have said which of them does not answer, after they have waited for it."""
STOPPING = "SIGINT,SIGTERM,SIGHUP,SIGUSR1,SIGUSR2,SIGXCPU"
"""Signals that the launcher passes on: those of `system.signals`."""
NO_ANSWER = signal.SIGALRM
"""Signal by which the other processes end one that does not answer; they have reported it."""
STARTED = "TXL_PROCESSES"
"""Variable that `txl train` and `txl eval` set for the processes that they start."""
TORCHRUN = "TORCHELASTIC_RUN_ID"
"""Variable that torchrun sets, not a cluster that sets the others."""
STORE = "TXL_STORE"
"""Variable with the file in which these processes meet."""
LOOPBACK_INTERFACES = ("lo", "lo0")
"""Names of the interface that other machines cannot reach: Linux's and macOS's."""
PROCESSES_PER_PROCESSOR = 16
"""Most processes that one command starts, per processor: more would only wait for each other."""
PARENT_CHECK_S = 1.0
"""Time between two looks if the launcher is still there."""
_PARENT = os.getppid()

OTHER_LAUNCHERS = {"srun": "SLURM_STEP_NUM_TASKS", "mpirun": "OMPI_COMM_WORLD_SIZE", "mpiexec": "PMI_SIZE"}
"""Programs whose processes do not know where to meet, and the variables with their number."""


Starter = Literal["torchrun", "txl"]


@dataclass(frozen=True)
class Place:
    """What started this process, and its place among the processes of its command."""

    starter: Starter | None = None
    """None for a process without a launcher. A cluster that sets the variables of torchrun counts as torchrun."""
    world_size: int = 1
    rank: int = 0
    local_rank: int = 0
    """Rank among the processes of this machine."""
    local_world_size: int = 1


ALONE = Place()


@functools.cache
def place() -> Place:
    """Return the place of this process; variables that contradict each other are a UsageError."""
    return place_in(os.environ)


def place_in(environment: Mapping[str, str]) -> Place:
    """Return the place that the variables of a launcher describe, or raise a UsageError."""
    if "RANK" in environment and "WORLD_SIZE" in environment:  # also set by hand, or by a cluster
        size = environment["WORLD_SIZE"]
        rank = environment["RANK"]
        numbers = [size, rank, environment.get("LOCAL_RANK", rank), environment.get("LOCAL_WORLD_SIZE", size)]
        if not (all(map(str.isdecimal, numbers)) and int(rank) < int(size)):
            raise UsageError(
                f"RANK={rank}, WORLD_SIZE={size} or the LOCAL ones are wrong; start the processes with torchrun, or "
                "unset them"
            )
        starter: Starter | None = None
        if STARTED in environment:
            starter = "txl"
        elif int(size) > 1:
            starter = "torchrun"
        return Place(starter, *map(int, numbers))
    for name, variable in OTHER_LAUNCHERS.items():
        count = environment.get(variable, "1")
        if count != "1":
            raise UsageError(f"{name} has started {count} processes; start them with torchrun, or one with `processes`")
    return ALONE


def place_or_alone() -> Place:
    """Return the place of this process; a wrong environment is reported by `place` when a command begins."""
    try:
        return place()
    except UsageError:
        return ALONE


def is_main() -> bool:
    """Return True for rank 0, which reports to the user and writes files."""
    return place_or_alone().rank == 0


def store_file() -> str:
    """Return the file in which processes meet that txl itself started; only they can read and write it."""
    return os.environ[STORE]


def check_processes(processes: int) -> None:
    """Reject a number of processes that contradicts the program which started this process."""
    started = place()
    if processes not in (1, started.world_size) and started.world_size > 1:
        raise UsageError(
            f"`processes` {processes}: torchrun has started {started.world_size} processes already; leave "
            "out `processes`, or start one process"
        )


def restart_count() -> int:
    """Return how often torchrun has started this process again after a failure."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def may_restart() -> bool:
    """Return True if torchrun starts the processes again after a failure."""
    return os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0"


def is_orphan() -> bool:
    """Return True if the launcher, which started this process, was killed and can no longer stop it.

    A process whose variables were set by hand or by a cluster has none: its parent may be a shell that ends.
    """
    has_launcher = place().starter == "txl" or TORCHRUN in os.environ
    return has_launcher and os.getppid() != _PARENT


def end_with_launcher() -> None:
    """Let this process end when its launcher is killed: an evaluation has nothing to save."""
    threading.Thread(target=_end_when_orphaned, daemon=True).start()


def _end_when_orphaned() -> None:
    while not is_orphan():
        time.sleep(PARENT_CHECK_S)
    os._exit(128 + signal.SIGTERM)


def _stay_on_loopback() -> None:
    """Let the processes that are started now listen on the loopback only, which other machines cannot reach."""
    for _, interface in socket.if_nameindex():
        if interface in LOOPBACK_INTERFACES:
            os.environ["GLOO_SOCKET_IFNAME"] = interface
            os.environ["NCCL_SOCKET_IFNAME"] = f"={interface}"  # this name, not every name that begins with it


def _set_variables(processes: int, *, rank_timeout_s: float) -> None:
    """Set the variables that the processes inherit."""
    _stay_on_loopback()
    # Auxiliary classifiers stop taking part in the loss during training, which PyTorch would warn about.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors.available() // processes)))
    os.environ[STARTED] = str(processes)
    os.environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] = str(math.ceil(rank_timeout_s) + SECONDS_TO_EXPLAIN)


def _exit_code(failures: Mapping[int, "ProcessFailure"], next_step: str) -> int:
    """Return the exit code of the process whose end has ended the others; raise an error if a signal killed it.

    Others may fail in the same second because it was killed, and the launcher ends the rest by SIGTERM.
    """

    def order(rank: int) -> tuple[int, bool, int]:
        failure = failures[rank]
        return failure.timestamp, failure.exitcode == -signal.SIGTERM, failure.exitcode

    first = min(failures, key=order)
    code = failures[first].exitcode
    if code == -NO_ANSWER:
        return TrainingError.exit_code
    if code < 0:
        raise TrainingError(f"process {first} was killed by signal {-code}; {next_step}")
    return code


def start_processes(
    processes: int, arguments: Sequence[str], *, rank_timeout_s: float, restarts: int = 0, next_step: str = RESUME
) -> int:
    """Run a command line of txl in several processes of this machine, and return their exit code.

    They exchange tensors over the loopback and meet in a file, so that nothing listens to the network.

    After a signal, a process that does not end within `rank_timeout_s` is killed; with PyTorch 2.11, within 30 s.
    """
    available = processors.available()
    most = PROCESSES_PER_PROCESSOR * available
    if processes > most:
        raise UsageError(f"`processes` {processes}: this machine has {available} processors; use at most {most}")
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    from txlcli.system import local_rendezvous

    local_rendezvous.register()
    logging.disable(logging.ERROR)  # the processes report their own errors
    _set_variables(processes, rank_timeout_s=rank_timeout_s)
    with tempfile.TemporaryDirectory() as directory:  # its mode is 0700
        os.environ[STORE] = os.path.join(directory, "store")
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(uuid.uuid4()),
            rdzv_backend=local_rendezvous.BACKEND,
            local_addr="localhost",
            max_restarts=restarts,
            signals_to_handle=STOPPING,
            logs_specs=DefaultLogsSpecs(log_dir=directory),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "txlcli", *arguments)
        except ChildFailedError as error:
            return _exit_code(error.failures, next_step)
        except SignalException as stopped:
            return 128 + stopped.sigval
    return 0
