import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from txlcli.system import child


def succeed(data):
    assert data == b"abc"


def fail(data):
    raise ValueError("no\nsuch thing")


def crash(data):
    os.kill(os.getpid(), signal.SIGSEGV)


def wait(data):
    time.sleep(60)


def allocate(data):
    bytearray(4 << 30)


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (succeed, None),
        (fail, "such thing"),
        (crash, f"ends the library by signal {signal.SIGSEGV:d}"),
        (wait, "takes more than 0.5 seconds"),
        (allocate, "MemoryError"),
    ],
)
def test_a_child_process_tells_why_it_failed(function, reason):
    seconds = 0.5 if function is wait else 20
    assert child.failure(f"{__name__}:{function.__name__}", b"abc", seconds=seconds) == reason


def spin():
    while True:
        pass


@pytest.mark.parametrize(
    ("function", "end"),
    [
        (lambda: "result", None),
        (lambda: 1 / 0, None),
        (spin, "never ends"),
        (lambda: time.sleep(60), "never ends"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), f"ends by signal {signal.SIGSEGV:d}"),
    ],
)
def test_a_copy_of_the_process_tells_if_a_function_ends_it(function, end):
    assert child.end_of(function, cpu_seconds=1, seconds=30 if function is spin else 1) == end


def test_a_copy_changes_nothing_in_this_process():
    values = [2]
    assert child.end_of(lambda: values.append(3)) is None
    assert values == [2]


def test_a_signal_ends_the_copy_too(tmp_path):
    def note_and_wait():
        (tmp_path / "copy").write_text(str(os.getpid()))
        time.sleep(60)

    def interrupt(*_):
        raise InterruptedError

    before = signal.signal(signal.SIGUSR1, interrupt)
    sender = threading.Timer(1, os.kill, (os.getpid(), signal.SIGUSR1))
    sender.start()
    try:
        with pytest.raises(InterruptedError):
            child.end_of(note_and_wait, seconds=60)
    finally:
        sender.join()
        signal.signal(signal.SIGUSR1, before)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "copy").read_text()), 0)


def test_a_signal_at_the_moment_at_which_the_copy_has_ended_stays_that_signal():
    """It was replaced by an error of the system, since the copy could not be killed any more."""
    raised = []

    def interrupt(frame, event, function):
        if event == "c_return" and function is os.waitpid and not raised:
            raised.append(True)
            raise KeyboardInterrupt

    sys.setprofile(interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            child.end_of(lambda: None)
    finally:
        sys.setprofile(None)
    assert raised


WITHOUT_PROCESSES = """
import os, resource, sys
from txlcli.errors import TxlError
from txlcli.system import child
if os.getuid() == 0:  # root has no limit
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
for function in (lambda: child.end_of(int), lambda: child.failure("builtins:len", b"")):
    try:
        function()
    except TxlError as error:
        print(error)
"""


def test_a_process_that_cannot_be_started_is_no_fault_of_the_file():
    ended = subprocess.run([sys.executable, "-c", WITHOUT_PROCESSES], capture_output=True, text=True, check=True)
    reason = "Resource temporarily unavailable"
    assert (
        ended.stdout.splitlines()
        == [f"the system cannot start a process ({reason}); end other processes, or allow more"] * 2
    )
