"""The commands that are killed and run out of disk space, and what must be true afterwards, whatever happened.

Earlier files are complete, the next command works and gives the result of an uninterrupted one, bit for bit, and no
temporary file is left.
"""

import functools
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.faults import process, results
from tests.faults.results import arrays_of, hidden_files, holds, same_run, stable, written
from tests.faults.table import LEFTOVER, LOST, SILENT

EVAL = ("--positions", "40", "--json")
OTHER_SEED = ("--set", "train.seed=5")


@dataclass(frozen=True)
class Job:
    name: str
    words: tuple[str, ...]
    needs: tuple[str, ...]
    """Files and directories of the sample that it needs or replaces."""
    check: Callable
    """Called with the state after the fault; see `State`."""


@dataclass(frozen=True)
class State:
    """The directory of a job after a fault, and what to compare it with."""

    job: Job
    directory: Path
    before: Path
    """A directory with the files before the command."""
    after: Path
    """A directory with the files after an uninterrupted command."""
    result: list
    """What the uninterrupted command printed."""
    outcome: object

    def run(self, *words):
        return self.outcome.examine(process.run(*words, directory=self.directory))

    def must_run(self, *words):
        """Run a command that must succeed; return True if it did."""
        ended = self.run(*words)
        if not ended.done:
            self.outcome.add(LOST, f"{ended.command}: {ended.last_line}")
        return ended.done

    def is_old_or_new(self, name):
        """Check that a file has all of the earlier or all of the new content."""
        now = written(self.directory / name)
        if now not in (written(self.before / name), written(self.after / name)):
            self.outcome.add(LOST, f"{name} is neither the earlier nor the new file")

    def equals_new(self, name):
        if written(self.directory / name) != written(self.after / name):
            self.outcome.add(SILENT, f"{name} differs from that of an uninterrupted command")

    def repeat(self):
        """Repeat the command, which must give the result of an uninterrupted one."""
        ended = self.run(*self.job.words)
        if not ended.done:
            self.outcome.add(LOST, f"{ended.command}: {ended.last_line}")
        elif stable(ended.stdout) != self.result:
            self.outcome.add(SILENT, f"{ended.command}: another result")
        return ended.done

    def has_no_temporary_files(self, *directories):
        for name in directories:
            left = hidden_files(self.directory / name) if (self.directory / name).is_dir() else []
            if left:
                self.outcome.add(LEFTOVER, f"{name}: {', '.join(left[:3])}")


# --- what must be true after each command ----------------------------------------------------------------------------


def check_store(state):
    """A store is complete, the earlier or the new one, and can be prepared again."""
    state.is_old_or_new("data/novel.h5")
    words = state.job.words if "--force" in state.job.words else (*state.job.words, "--force")
    if state.must_run(*words):
        state.equals_new("data/novel.h5")
    state.has_no_temporary_files("data")


def check_new_run(state):
    """A run can be resumed or started again, and ends as an uninterrupted one."""
    _finish(state, "new")
    state.has_no_temporary_files("runs")


def check_replaced_run(state):
    """The name of a replaced run belongs to the earlier run or to one that can be resumed."""
    run = "runs/byte"
    state.must_run("eval", "byte", *EVAL)
    if same_run(state.directory / run, state.before / run):
        if state.must_run(*state.job.words) and not same_run(state.directory / run, state.after / run):
            state.outcome.add(SILENT, "the new run differs from an uninterrupted one")
    else:
        _finish(state, "byte")
    state.has_no_temporary_files("runs")


def check_resumed_run(state):
    _finish(state, "half")
    state.has_no_temporary_files("runs")


def _finish(state, name):
    """Bring a run to its end with whichever command accepts it."""
    resumed = state.run("train", "--resume", name)
    if not resumed.done and "has finished" not in resumed.stderr:
        started = state.run(*state.job.words)
        if not started.done and not state.must_run(*state.job.words, "--force"):
            return
    if not same_run(state.directory / "runs" / name, state.after / "runs" / name):
        state.outcome.add(SILENT, f"runs/{name} differs from an uninterrupted run")


def check_losses(state):
    """A file of losses is complete, the earlier or the new one; the results of a run can be read."""
    path = state.directory / "losses.h5"
    if not any(holds(path, arrays_of(directory / "losses.h5")) for directory in (state.before, state.after)):
        state.outcome.add(LOST, "losses.h5 has neither the earlier nor the new losses")
    state.must_run("runs", "show", "byte", "--json")
    if state.repeat() and not holds(path, arrays_of(state.after / "losses.h5")):
        state.outcome.add(SILENT, "losses.h5 differs from that of an uninterrupted command")
    state.has_no_temporary_files(".")


def check_import(state):
    """The name of an imported run belongs to the earlier run or to the imported one."""
    state.must_run("eval", "byte", *EVAL)
    if state.must_run(*state.job.words):
        state.equals_new("runs/byte/best.safetensors")
    state.has_no_temporary_files("runs")


def check_export(state):
    """Each file of an export is complete."""
    for path in (state.after / "out").iterdir():
        state.is_old_or_new(f"out/{path.name}")
    if state.must_run(*state.job.words):
        for path in (state.after / "out").iterdir():
            state.equals_new(f"out/{path.name}")
    state.has_no_temporary_files("out")


TRAIN = ("train", "tiny.toml", "--json")
JOBS = (
    Job("prepare", ("prepare", "novel", "--json"), ("novel",), check_store),
    Job(
        "prepare --force",
        ("prepare", "other.txt", "--name", "novel", "--tokenizer", "word", "--force", "--json"),
        ("other.txt", "data/novel.h5"),
        check_store,
    ),
    Job("train", (*TRAIN, "--name", "new"), ("tiny.toml", "data/novel.h5"), check_new_run),
    Job(
        "train --force",
        (*TRAIN, "--name", "byte", "--force", *OTHER_SEED),
        ("tiny.toml", "data/novel.h5", "runs/byte"),
        check_replaced_run,
    ),
    Job(
        "train --resume",
        ("train", "--resume", "half", "--json"),
        ("tiny.toml", "data/novel.h5", "runs/half"),
        check_resumed_run,
    ),
    Job(
        "eval --losses",
        ("eval", "byte", "--losses", "losses.h5", "--force", *EVAL),
        ("data/novel.h5", "runs/byte", "losses.h5"),
        check_losses,
    ),
    Job(
        "import",
        ("import", "hf", "--store", "word", "--name", "byte", "--force", "--json"),
        ("hf", "data/word.h5", "data/novel.h5", "runs/byte"),
        check_import,
    ),
    Job("export", ("export", "char", "out", "--format", "hf", "--force", "--json"), ("out", "runs/char"), check_export),
)


@dataclass(frozen=True)
class Rehearsal:
    """An uninterrupted job, with which the others are compared."""

    job: Job
    before: Path
    after: Path
    result: list
    seconds: float
    changes: int

    def state(self, directory, outcome):
        return State(self.job, directory, self.before, self.after, self.result, outcome)


@functools.cache
def rehearse(sample):
    """Run each job to its end, and return it with its result, duration and number of file changes."""
    rehearsals = []
    for job in JOBS:
        parent = sample.directory.parent / f"rehearsal of {job.name}"
        shutil.rmtree(parent, ignore_errors=True)
        before, after = (sample.copy(job.needs, parent / name) for name in ("before", "after"))
        ended = process.run(*job.words, directory=after, limit_s=120)
        assert ended.done, f"{ended.command}: {ended.stderr}"
        rehearsals.append(Rehearsal(job, before, after, results.stable(ended.stdout), ended.seconds, ended.changes))
    return rehearsals
