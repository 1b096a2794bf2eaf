"""Runs injections in parallel, each in a directory of its own."""

import multiprocessing
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.faults import disk, kills, mutations, races
from tests.faults.table import Outcome

FAULTS = {
    "kills": kills.injections,
    "mutations": mutations.injections,
    "disk": disk.injections,
    "races": races.injections,
}
FAST_DIRECTORY = Path("/dev/shm")  # in memory: thousands of small files are written and synchronized


@dataclass(frozen=True)
class Amounts:
    """Seed and numbers of injections."""

    seed: int = 1
    kills: int = 500
    """Kills in total, divided among the commands."""
    mutations: int = 1000
    """Mutations of each file."""
    disks: int = 20
    """Sizes of disk that are tried for each command."""
    races: int = 10
    """Repetitions of each race."""


def work_directory(parent=None):
    """Return a context manager of a temporary directory, in memory if possible."""
    parent = parent or (FAST_DIRECTORY if FAST_DIRECTORY.is_dir() else None)
    return tempfile.TemporaryDirectory(prefix="txl-faults-", dir=parent, ignore_cleanup_errors=True)


def run(injections, work, jobs):
    """Yield the outcomes of injections in order."""
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
