"""The processors that this process may use, and how its threads wait for each other."""

import os
import sys


def available() -> int:
    """Return the number of processors that the system allows this process to run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def let_threads_sleep() -> bool:
    """Let PyTorch's threads sleep soon while they wait for each other, unless the user has chosen how they wait.

    By default they spin, and take the processor from each other as soon as other programs need it, too. The OpenMP
    library reads this setting when PyTorch is imported, and never again: return False if that was before.
    """
    if {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"} & os.environ.keys():
        return True
    os.environ["GOMP_SPINCOUNT"] = "2000"
    return "torch" not in sys.modules
