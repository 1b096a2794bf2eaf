"""Trains in several processes on this machine: starts them as torchrun would, and ends as they end."""

import logging
import os
import sys
import uuid
from collections.abc import Sequence

import typer

SECONDS_TO_SAVE = "600"
"""Between Ctrl-C or SIGTERM and the end of a process that has not ended by then."""


def start(processes: int, words: Sequence[str]) -> None:
    """Carry out a command line of txl in so many processes, which `txlcli.torchrun` tells apart.

    Raises:
        Exit: they have stopped or failed, and have said why.
    """
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.disable(logging.ERROR)  # the processes speak for themselves
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", SECONDS_TO_SAVE)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=processes,
        run_id=str(uuid.uuid4()),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
    )
    try:
        elastic_launch(config, sys.executable)("-m", "txlcli", *words)
    except ChildFailedError as error:
        _, first = error.get_first_failure()
        raise typer.Exit(first.exitcode if first.exitcode > 0 else 1) from error
    except SignalException as stopped:
        raise typer.Exit(128 + stopped.sigval) from stopped
