import os
import signal
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
