"""Tries a function on data of others in a child process with limits on time and memory: it may crash or never end."""

import contextlib
import faulthandler
import os
import resource
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import NoReturn

from txlcli.errors import TxlError

MAX_SECONDS = 20
MAX_MEMORY = 2 << 30  # bytes of address space
_CODE = """
import importlib, resource, sys
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
module, _, name = sys.argv[1].partition(":")
getattr(importlib.import_module(module), name)(sys.stdin.buffer.read())
"""


def failure(function: str, data: bytes, *, seconds: float = MAX_SECONDS, memory: int = MAX_MEMORY) -> str | None:
    """Call a function with data in a child process; return why it failed, or None.

    Args:
        function: its name, as "module:function".
        data: its argument.
        seconds: time limit.
        memory: limit of the child's address space, in bytes.

    Raises:
        TxlError: the system cannot start a process.
    """
    words = [sys.executable, "-P", "-c", _CODE, function, str(memory)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OMP_NUM_THREADS": "1"}
    try:
        child = subprocess.run(words, input=data, capture_output=True, env=environment, timeout=seconds, check=False)
    except OSError as error:
        raise _no_process(error) from error
    except subprocess.TimeoutExpired:
        return f"takes more than {seconds:g} seconds"
    if child.returncode < 0:
        return f"ends the library by signal {-child.returncode}"
    lines = child.stderr.decode(errors="replace").strip().splitlines()
    return (lines[-1] if lines else "no reason given")[:200] if child.returncode else None


def end_of(function: Callable[[], object], *, cpu_seconds: int = 2, seconds: int = 10) -> str | None:
    """Call a function in a copy of this process; return why the copy did not survive, or None.

    Making the copy takes milliseconds. None means that the function returned or raised an exception, which it will do
    in this process, too.

    Args:
        function: reads files; it uses neither threads nor a GPU.
        cpu_seconds: limit of computing time, which does not count the time that a slow disk takes.
        seconds: limit of time.

    Raises:
        TxlError: the system cannot start a process.
    """
    # Python drops exceptions of signal handlers that run while it forks, so the signals wait until then.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    copy = status = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # the copy uses no lock that another thread may hold
            copy = _fork()
        if copy == 0:
            _call_and_exit(function, cpu_seconds, seconds)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _, status = os.waitpid(copy, 0)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if copy is not None and status is None:  # Ctrl-C or SIGTERM, perhaps at the moment at which the copy has ended
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(copy, signal.SIGKILL)
                os.waitpid(copy, 0)
    if os.WIFEXITED(status):
        return f"ends with exit code {code}" if (code := os.WEXITSTATUS(status)) else None
    number = os.WTERMSIG(status)
    return "never ends" if number in (signal.SIGXCPU, signal.SIGALRM) else f"ends by signal {number}"


def _fork() -> int:
    """Fork. A failure is reported as one of the system, not of the file that the copy would read."""
    try:
        return os.fork()
    except OSError as error:
        raise _no_process(error) from error


def _no_process(error: OSError) -> TxlError:
    return TxlError(f"the system cannot start a process ({error.strerror}); end other processes, or allow more")


def _call_and_exit(function: Callable[[], object], cpu_seconds: int, seconds: int) -> NoReturn:
    """Call a function and end the process; the system ends it at the limits, whatever the function does."""
    try:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.signal(signal.SIGXCPU, signal.SIG_DFL)
        signal.alarm(seconds)
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the system's words about a crash
        with contextlib.suppress(ValueError, OSError):  # this process may have lower limits
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
        function()
    finally:
        os._exit(0)
