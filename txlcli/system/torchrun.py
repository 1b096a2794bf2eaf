"""What torchrun says about this process: one of several that train one model together, or the only one."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

_PARENT = os.getppid()


def world_size() -> int:
    """How many processes torchrun has started; 1 without it."""
    return int(os.environ["WORLD_SIZE"]) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def rank() -> int:
    """The number of this process among them, from 0."""
    return int(os.environ["RANK"]) if world_size() > 1 else 0


def local_rank() -> int:
    """Its number among those on this machine, from 0."""
    return int(os.environ["LOCAL_RANK"]) if world_size() > 1 else 0


def local_world_size() -> int:
    """How many of them are on this machine."""
    return int(os.environ["LOCAL_WORLD_SIZE"]) if world_size() > 1 else 1


def is_main() -> bool:
    """Whether this process is the one that talks to people and writes files."""
    return rank() == 0


def is_orphan() -> bool:
    """Whether what started this process and others was killed: nobody could stop them any more."""
    return world_size() > 1 and os.getppid() != _PARENT


@contextmanager
def handle_signals(action: signal.Handlers) -> Iterator[None]:
    """Do this at Ctrl-C and SIGTERM inside this block.

    While processes wait for each other in PyTorch, no handler written in Python is called: only the default ends them.
    """
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, action) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
