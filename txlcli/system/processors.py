"""Counts the processors that this process may use."""

import os


def available() -> int:
    """Return the number of processors that the system allows this process to run on, at least 1."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
