"""Runs commands of txl in forked processes, with everything imported already, and can kill them at a given moment.

A fork takes milliseconds where a new interpreter takes seconds. Each process has a directory and a time limit; its
output goes to files in memory.
"""

import os
import signal
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import txlcli
from tests.faults.table import HANG_S

ROOT = Path(txlcli.__file__).parents[1]
POLL_S = 0.002
READY = 8  # offset of the byte that says that txl is called now
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod", "os.link", "os.symlink")


@dataclass(frozen=True)
class Kill:
    """A signal at a moment: seconds after txl was called, or before it changes a file for the n-th time."""

    number: int
    after_s: float | None = None
    before_change: int | None = None

    def __str__(self):
        when = f"after {self.after_s:.3f} s" if self.after_s is not None else f"before change {self.before_change}"
        return f"{signal.Signals(self.number).name} {when}"


@dataclass(frozen=True)
class Ended:
    words: tuple[str, ...]
    code: int
    signal: int
    """Signal that ended the process; 0 if it exited."""
    was_sent: bool
    """True if the suite sent that signal."""
    stdout: str
    stderr: str
    seconds: float
    hung: bool
    changes: int
    """Number of file changes that Python made in the directory."""

    @property
    def done(self):
        return not self.hung and self.signal == 0 and self.code == 0

    @property
    def command(self):
        return " ".join(["txl", *(word if len(word) < 60 else f"{word[:60]}..." for word in self.words)])

    @property
    def last_line(self):
        return (self.stderr.strip().splitlines() or ["(nothing on stderr)"])[-1][:300]


class Process:
    """A running command; see `start`."""

    def __init__(self, words, pid, outputs, counter, kill):
        self._words, self._pid, self._outputs, self._counter, self._kill = words, pid, outputs, counter, kill
        self._started = time.monotonic()

    def wait(self, limit_s=HANG_S):
        """Wait for the end of the process; kill its group after the time limit."""
        hung, sent, ready = False, False, None
        while True:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            if pid:
                break
            now = time.monotonic()
            ready = ready or (now if os.pread(self._counter, 1, READY) else None)
            if not sent and self._kill and self._kill.after_s is not None and ready:
                sent = now - ready >= self._kill.after_s
                if sent:
                    os.kill(self._pid, self._kill.number)
            if not hung and now - self._started > limit_s:
                hung = True
                os.killpg(self._pid, signal.SIGKILL)  # its children, too
            time.sleep(POLL_S)
        seconds = time.monotonic() - self._started
        ended_by = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        stdout, stderr = (_content(output) for output in self._outputs)
        return Ended(
            words=tuple(self._words),
            code=0 if ended_by else os.WEXITSTATUS(status),
            signal=ended_by,
            was_sent=self._kill is not None and ended_by == self._kill.number == signal.SIGKILL,
            stdout=stdout,
            stderr=stderr,
            seconds=seconds,
            hung=hung,
            changes=int.from_bytes(os.pread(self._counter, 8, 0), "little"),
        )

    def close(self):
        for descriptor in (*self._outputs, self._counter):
            os.close(descriptor)


def start(*arguments, directory, kill=None):
    """Start a command in a directory, in a fork."""
    words = [str(argument) for argument in arguments]
    outputs = os.memfd_create("stdout"), os.memfd_create("stderr")
    counter = os.memfd_create("changes")
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        try:
            _become(words, Path(directory), outputs, counter, kill)
        except BaseException:
            os.write(outputs[1], traceback.format_exc().encode(errors="backslashreplace"))
        finally:
            os._exit(99)  # only after an error of this function
    return Process(words, pid, outputs, counter, kill)


def run(*arguments, limit_s=HANG_S, **options):
    """Run a command to its end; see `start` and `Process.wait`."""
    process = start(*arguments, **options)
    try:
        return process.wait(limit_s)
    finally:
        process.close()


def _become(words, directory, outputs, counter, kill):
    os.setpgid(0, 0)
    os.chdir(directory)
    with open(os.devnull, "rb") as null:
        os.dup2(null.fileno(), 0)
    for number, output in enumerate(outputs, 1):
        os.dup2(output, number)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout = open(0), open(1, "w")  # noqa: SIM115 - for the whole process
    sys.stderr = open(2, "w", errors="backslashreplace")  # noqa: SIM115 - as Python opens it
    sys.addaudithook(_Changes(directory, counter, kill))
    os.pwrite(counter, b"1", READY)
    os._exit(_exit_code(words))


def _exit_code(words):
    from txlcli.__main__ import main

    sys.argv = ["txl", *words]
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except OSError:
            code = code or 1
    return code


class _Changes:
    """Audit hook that counts changes of files in a directory, and sends the signal of a `Kill` before one of them."""

    def __init__(self, directory, counter, kill):
        self._directory, self._counter, self._kill, self._count = f"{directory}/", counter, kill, 0

    def __call__(self, event, arguments):
        if event == "open":
            path, mode, flags = arguments
            writes = bool(flags & (os.O_WRONLY | os.O_RDWR)) if isinstance(flags, int) else "r" not in (mode or "r")
            if not writes:
                return
        elif event in CHANGES:
            path = arguments[0]
        else:
            return
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(self._directory):
            return
        self._count += 1
        os.pwrite(self._counter, self._count.to_bytes(8, "little"), 0)
        if self._kill and self._count == self._kill.before_change:
            os.kill(os.getpid(), self._kill.number)


def _content(descriptor):
    size = os.fstat(descriptor).st_size
    return os.pread(descriptor, min(size, 1 << 22), 0).decode("utf-8", errors="replace")
