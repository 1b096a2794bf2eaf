"""Full disks of several sizes.

Each command runs in a file system of its own: a tmpfs in a private mount namespace, which vanishes with the process.
"""

import ctypes
import os
import pickle
import traceback
from functools import partial
from pathlib import Path

from tests.faults import process, results
from tests.faults.jobs import rehearse
from tests.faults.table import SILENT, Injection

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


def _fill(rehearsal, sample, free, directory, outcome):
    """Run the command on a disk with little free space, then check everything with ample space."""
    job = rehearsal.job
    mount(directory, AMPLE)
    sample.copy(job.needs, directory)
    resize(directory, used(directory) + free)
    ended = outcome.examine(process.run(*job.words, directory=directory))
    if ended.done and results.stable(ended.stdout) != rehearsal.result:
        outcome.add(SILENT, f"{ended.command}: another result")
    resize(directory, AMPLE)
    job.check(rehearsal.state(directory, outcome))
    return outcome


def _fill_in_child(rehearsal, sample, free, directory, outcome):
    outcome.findings = in_child(_fill, rehearsal, sample, free, directory, outcome).findings


def injections(sample, amounts):
    """Return full disks of several sizes, the largest about as large as the files that a command leaves."""
    found = []
    for rehearsal in rehearse(sample) if can_mount(sample.directory.parent) else []:
        steps = sum(-(-path.stat().st_size // STEP) for path in rehearsal.after.rglob("*") if path.is_file())
        for number in range(amounts.disks):
            free = STEP * (steps * number // max(1, amounts.disks - 1))
            act = partial(_fill_in_child, rehearsal, sample, free)
            found.append(Injection("full disk", rehearsal.job.name, f"{free:,} bytes", act))
    return found
