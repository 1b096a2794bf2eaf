"""Full disks of every size in steps of 4 kB, and disks that cannot be written.

Each command runs in a file system of its own: a tmpfs in a private mount namespace, which vanishes with the process.
Where none can be mounted, the length of files is limited instead, and directories cannot be made read-only.
"""

import ctypes
import os
import pickle
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.faults import process, results
from tests.faults.jobs import JOBS, Rehearsal, rehearse
from tests.faults.table import LOST, SILENT

STEP = 4096  # bytes
MARGIN = 4  # steps, since the use is only sampled
AMPLE = 64 << 20  # bytes
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
PRIVATE, RECURSIVE, REMOUNT, READ_ONLY = 1 << 18, 1 << 14, 1 << 5, 1
_libc = ctypes.CDLL(None, use_errno=True)


def _call(function, *arguments):
    if function(*arguments):
        raise OSError(ctypes.get_errno(), f"{function.__name__}: {os.strerror(ctypes.get_errno())}")


def _mount(kind, directory, flags, options=""):
    _call(_libc.mount, kind.encode(), str(directory).encode(), kind.encode(), flags, options.encode())


def mount(directory, size):
    """Mount an empty file system of `size` bytes, in a new mount namespace of this process."""
    user, group = os.getuid(), os.getgid()
    _call(_libc.unshare, NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USER)
    if user:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"0 {user} 1")
        Path("/proc/self/gid_map").write_text(f"0 {group} 1")
    _mount("none", "/", PRIVATE | RECURSIVE)
    _mount("tmpfs", directory, 0, f"size={size}")


def resize(directory, size, *, read_only=False):
    """Change the size of the file system, or make it read-only."""
    _mount("tmpfs", directory, REMOUNT | (READ_ONLY if read_only else 0), f"size={size}")


def used(directory):
    """Return the number of bytes that are used in a file system."""
    facts = os.statvfs(directory)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def in_child(function, *arguments):
    """Call a function in a forked process, and return its result or raise its error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        try:
            answer = True, function(*arguments)
        except BaseException:
            answer = False, traceback.format_exc()
        with open(writing, "wb") as pipe:
            pickle.dump(answer, pipe)
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as pipe:
        content = pipe.read()
    os.waitpid(pid, 0)
    worked, value = pickle.loads(content)
    if not worked:
        raise OSError(value)
    return value


def can_mount(directory):
    """Return True if this process may mount file systems."""
    try:
        in_child(mount, directory, AMPLE)
    except OSError:
        return False
    return True


def _fill(rehearsal, sample, directory, outcome, steps):
    """Run a command with `steps` of free space, then check everything with ample space."""
    job = rehearsal.job
    mount(directory, AMPLE)
    sample.copy(job.needs, directory)
    resize(directory, used(directory) + steps * STEP)
    ended = outcome.examine(process.run(*job.words, directory=directory, fresh=_is_fresh(job)))
    _check_failure(ended, rehearsal, outcome)
    resize(directory, AMPLE)
    job.check(rehearsal.state(directory, outcome))
    return outcome


def _limit(rehearsal, sample, directory, outcome, steps):
    """Run a command that cannot write files longer than `steps`, then check everything without the limit."""
    job = rehearsal.job
    sample.copy(job.needs, directory)
    ended = process.run(*job.words, directory=directory, fresh=_is_fresh(job), longest_file=max(steps * STEP, 1))
    outcome.examine(ended)
    _check_failure(ended, rehearsal, outcome)
    job.check(rehearsal.state(directory, outcome))
    return outcome


def _write_protect(rehearsal, sample, directory, outcome, _):
    """Run a command in a read-only file system, then check everything with a writable one."""
    job = rehearsal.job
    mount(directory, AMPLE)
    sample.copy(job.needs, directory)
    before = _contents(directory)
    resize(directory, AMPLE, read_only=True)
    ended = outcome.examine(process.run(*job.words, directory=directory, fresh=_is_fresh(job)))
    if ended.done:
        outcome.add(SILENT, f"{ended.command}: exit code 0 although nothing can be written")
    resize(directory, AMPLE)
    if _contents(directory) != before:
        outcome.add(LOST, "files of a read-only folder changed")
    job.check(rehearsal.state(directory, outcome))
    return outcome


def _is_fresh(job):
    """Return True for commands whose libraries write files while the interpreter exits."""
    return job.words[0] == "prepare"


def _check_failure(ended, rehearsal, outcome):
    if ended.done and results.stable(ended.stdout) != rehearsal.result:
        outcome.add(SILENT, f"{ended.command}: another result")


def _contents(directory):
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@dataclass(frozen=True)
class DiskFault:
    """A disk that is full or read-only during one command."""

    rehearsal: Rehearsal
    sample: object
    fault: str
    work: object
    """One of the functions above."""
    steps: int = 0

    @property
    def target(self):
        return self.rehearsal.job.name

    @property
    def name(self):
        return f"{self.steps * STEP:,} bytes" if self.fault == "full disk" else "read-only"

    def act(self, directory, outcome):
        found = in_child(self.work, self.rehearsal, self.sample, directory, outcome, self.steps)
        outcome.findings, outcome.peak_bytes = found.findings, found.peak_bytes


def injections(sample, amounts):
    """Return full disks of every size up to one that suffices, and read-only disks, for every command."""
    parent = sample.directory.parent
    mounts = can_mount(parent)
    fill = _fill if mounts else _limit
    made = []
    for rehearsal in rehearse(sample, [job for job in JOBS if job.name != "reproduce"]):
        if mounts:
            directory = parent / f"disk of {rehearsal.job.name}"
            directory.mkdir(exist_ok=True)
            enough = in_child(_steps_needed, rehearsal, sample, directory)
        else:
            enough = _steps_of_longest(rehearsal)
        count = min(amounts.disk_steps or enough + 1, enough + 1)
        sizes = sorted({round(number * enough / max(1, count - 1)) for number in range(count)})
        made += [DiskFault(rehearsal, sample, "full disk", fill, steps) for steps in sizes]
        if mounts:
            made.append(DiskFault(rehearsal, sample, "read-only disk", _write_protect))
    return made


def _steps_needed(rehearsal, sample, directory):
    """Return the largest number of steps that a command uses at any moment."""
    mount(directory, AMPLE)
    sample.copy(rehearsal.job.needs, directory)
    before, uses = used(directory), []
    ended = process.run(*rehearsal.job.words, directory=directory, watch=lambda: uses.append(used(directory)))
    assert ended.done, ended.stderr
    return (max(uses) - before) // STEP + MARGIN


def _steps_of_longest(rehearsal):
    """Return the length of the longest file that a command writes, in steps."""
    return max(path.stat().st_size for path in rehearsal.after.rglob("*") if path.is_file()) // STEP + MARGIN
