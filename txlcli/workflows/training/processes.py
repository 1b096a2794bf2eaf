"""Trains in several processes on this machine: starts them as torchrun would, and ends as they end."""

import logging
import os
import sys
import tempfile
import uuid
from collections.abc import Sequence

from txlcli import console
from txlcli.system import processors

SECONDS_TO_SAVE = "600"
"""Between Ctrl-C or SIGTERM and the end of a process that has not ended by then."""


def start(processes: int, words: Sequence[str]) -> None:
    """Carry out a command line of txl in so many processes, which `txlcli.system.torchrun` tells apart.

    Raises:
        SystemExit: they have stopped or failed, and have said why.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the processes speak for themselves
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SECONDS_TO_SAVE)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # auxiliary classifiers are left out late, not never
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors.available() // processes)))
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=processes,
            run_id=str(uuid.uuid4()),
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            local_addr="localhost",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "txlcli", *words)
        except ChildFailedError as error:
            rank, first = error.get_first_failure()
            if first.exitcode < 0:  # it could say nothing
                console.complain(
                    f"process {rank} was killed by signal {-first.exitcode}; go on with --resume from the last "
                    "checkpoint, if there is one"
                )
            sys.exit(first.exitcode if first.exitcode > 0 else 1)
        except SignalException as stopped:
            sys.exit(128 + stopped.sigval)
