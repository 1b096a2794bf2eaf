"""Runs injections in parallel, each in a directory of its own."""

import multiprocessing
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from tests.faults import disk, hostile, kills, mutations, races, special
from tests.faults.table import Outcome
from txlcli import console

FAULTS = {
    "kills": kills.injections,
    "mutations": mutations.injections,
    "disk": disk.injections,
    "hostile": hostile.injections,
    "races": races.injections,
    "special": special.injections,
}
FAST_DIRECTORY = Path("/dev/shm")  # in memory: thousands of small files are written and synchronized
SECONDS_BETWEEN_REPORTS = 15


@dataclass(frozen=True)
class Amounts:
    """Seed and numbers of injections."""

    seed: int = 1
    kills: int = 500
    """Kills in total, divided among the commands."""
    mutations: int = 5000
    """Mutations of each format."""
    disk_steps: int | None = None
    """Steps of 4 kB that are tried for each command; None for all."""
    races: int = 10
    """Repetitions of each race."""
    formats: tuple[str, ...] = ()
    """Formats to mutate; empty for all."""


def work_directory(parent=None):
    """Return a context manager of a temporary directory, in memory if possible."""
    parent = parent or (FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None)
    return tempfile.TemporaryDirectory(prefix="txl-faults-", dir=parent, ignore_cleanup_errors=True)


def run(injections, work, jobs, on_outcomes=lambda outcomes: None):
    """Make all injections and return their outcomes in order.

    Args:
        injections: objects with the attributes fault, target, name and the method `act(directory, outcome)`.
        work: directory for temporary files.
        jobs: number of processes.
        on_outcomes: called now and then with the outcomes so far.
    """
    outcomes, reported = [], time.monotonic()
    for outcome in _outcomes(injections, work, jobs):
        outcomes.append(outcome)
        if time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
            reported = time.monotonic()
            console.say(f"{len(outcomes):,} of {len(injections):,} injections; {outcome.fault} {outcome.target}")
            on_outcomes(outcomes)
    return outcomes


def _outcomes(injections, work, jobs):
    """Yield the outcomes in the order of the injections."""
    if jobs == 1:
        yield from (_inject(injection, work) for injection in injections)
        return
    global _injections, _work  # inherited by the forked processes: closures cannot be pickled
    _injections, _work = injections, work
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_inject_number, range(len(injections)), chunksize=1)


_injections: list = []
_work = Path()


def _inject_number(number):
    return _inject(_injections[number], _work)


def _inject(injection, work):
    outcome = Outcome(injection.fault, injection.target, injection.name)
    directory = Path(tempfile.mkdtemp(dir=work))
    try:
        injection.act(directory, outcome)
    except Exception as error:
        raise RuntimeError(f"{injection.fault} {injection.target} {injection.name}: {error!r}") from error
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return outcome
