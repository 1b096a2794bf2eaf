"""The processors that this process may use, and how its threads wait for each other."""

import os
import sys
import time
from collections.abc import Callable

TRUSTED_SHARE = 0.7
"""Share of a processor from which times are those of an idle machine, nearly."""


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


class ShareClock:
    """Measures the share of a processor that the thread which makes it gets; other programs take the rest."""

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, cpu_clock: Callable[[], float] = time.thread_time
    ) -> None:
        self._clock = clock
        self._cpu_clock = cpu_clock
        self._start = clock()
        self._cpu_start = cpu_clock()

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return self._clock() - self._start

    def share(self) -> float:
        """Return the share since the start, at most 1."""
        return min(1.0, (self._cpu_clock() - self._cpu_start) / max(self.seconds, 1e-9))


def is_trusted(share: float | None) -> bool:
    """Return True if times that were measured with this share of a processor can be compared; None is a GPU's."""
    return share is None or share >= TRUSTED_SHARE
