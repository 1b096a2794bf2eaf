"""Full disks of several sizes.

Each command runs in a file system of its own: a tmpfs in a private mount namespace, which vanishes with the process.
"""

import ctypes
import os
import pickle
import traceback
from dataclasses import dataclass
from pathlib import Path

from tests.faults import process, results
from tests.faults.jobs import Rehearsal, rehearse
from tests.faults.table import SILENT

STEP = 4096  # bytes
AMPLE = 64 << 20  # bytes
NEW_USER, NEW_MOUNTS = 0x10000000, 0x00020000
PRIVATE, RECURSIVE, REMOUNT = 1 << 18, 1 << 14, 1 << 5
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


def resize(directory, size):
    _mount("tmpfs", directory, REMOUNT, f"size={size}")


def used(directory):
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


@dataclass(frozen=True)
class DiskFault:
    """A disk that is full during one command."""

    rehearsal: Rehearsal
    sample: object
    free: int
    """Bytes that the command can use."""

    fault = "full disk"

    @property
    def target(self):
        return self.rehearsal.job.name

    @property
    def name(self):
        return f"{self.free:,} bytes"

    def act(self, directory, outcome):
        outcome.findings = in_child(self._fill, directory, outcome).findings

    def _fill(self, directory, outcome):
        """Run the command with little free space, then check everything with ample space."""
        job = self.rehearsal.job
        mount(directory, AMPLE)
        self.sample.copy(job.needs, directory)
        resize(directory, used(directory) + self.free)
        ended = outcome.examine(process.run(*job.words, directory=directory))
        if ended.done and results.stable(ended.stdout) != self.rehearsal.result:
            outcome.add(SILENT, f"{ended.command}: another result")
        resize(directory, AMPLE)
        job.check(self.rehearsal.state(directory, outcome))
        return outcome


def injections(sample, amounts):
    """Return full disks of several sizes, the largest about as large as the files that a command leaves."""
    if not can_mount(sample.directory.parent):
        return []
    return [
        DiskFault(rehearsal, sample, STEP * (_steps(rehearsal) * number // max(1, amounts.disks - 1)))
        for rehearsal in rehearse(sample)
        for number in range(amounts.disks)
    ]


def _steps(rehearsal):
    return sum(-(-path.stat().st_size // STEP) for path in rehearsal.after.rglob("*") if path.is_file())
