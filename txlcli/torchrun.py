"""What torchrun says about this process: one of several that train one model together, or the only one."""

import os


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


def leads() -> bool:
    """Whether this process is the one that talks to people and writes files."""
    return rank() == 0
