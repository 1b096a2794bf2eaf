"""Reads torchrun's environment: whether this process trains alone or with others, and its rank."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from txlcli.system import signals

_PARENT = os.getppid()


def world_size() -> int:
    """Return the number of processes that torchrun started; 1 without torchrun."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """Return the rank of this process, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """Return the rank of this process on its machine, from 0."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0


def local_world_size() -> int:
    """Return the number of processes on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if world_size() > 1 else 1


def is_main() -> bool:
    """Return True for rank 0, which reports to the user and writes files."""
    return rank() == 0


def is_orphan() -> bool:
    """Return True if torchrun, which started this process, was killed and can no longer stop it."""
    return world_size() > 1 and os.getppid() != _PARENT


@contextmanager
def handle_signals(action: signal.Handlers) -> Iterator[None]:
    """Set the action for SIGINT (Ctrl-C), SIGTERM and SIGHUP while the block runs.

    While processes wait for each other in PyTorch, no Python handler is called: only the default action ends them.
    """
    before = {number: signal.signal(number, action) for number in signals.handled(signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
