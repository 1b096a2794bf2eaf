"""Processes see who is silent, and a signal of one reaches rank 0."""

import os
import signal
import time

import pytest
from torch import distributed

from txlcli.core.training.heartbeat import SECONDS_UNTIL_NAMED, Heartbeat

if not distributed.is_available():
    pytest.skip("this PyTorch cannot run in several processes", allow_module_level=True)


class Clock:
    """A clock that a test sets."""

    seconds = 0.0

    def __call__(self):
        return self.seconds


def wait_until(condition):
    until = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < until, "timed out"
        time.sleep(0.01)


@pytest.fixture
def heartbeats():
    """Return a function that starts the heartbeat of a rank; all of them share a store, and end with the test."""
    store, started = distributed.HashStore(), []

    def start(rank, **changed):
        arguments = {"size": 3, "timeout_s": 60.0, "say": print, "end": print, "interval_s": 0.01}
        heartbeat = Heartbeat(store, rank=rank, **arguments | changed)
        heartbeat.start()
        started.append(heartbeat)
        return heartbeat

    yield start
    for heartbeat in started:
        heartbeat.stop()


def test_a_silent_process_is_named_once(heartbeats):
    clock, said = Clock(), []
    first = heartbeats(0, clock=clock, say=said.append, size=2)
    second = heartbeats(1)
    clock.seconds = SECONDS_UNTIL_NAMED - 1
    wait_until(lambda: first.silent_ranks(0.0) == [])  # its sign of life was seen at this time
    second.stop()
    time.sleep(0.1)
    assert said == []
    clock.seconds = 2 * SECONDS_UNTIL_NAMED
    wait_until(lambda: said)
    assert first.silent_ranks(SECONDS_UNTIL_NAMED) == [1]
    time.sleep(0.1)
    assert said == ["no sign of life from rank 1 for 10 s; waiting for it, at most train.rank_timeout = 60 s"]


def test_a_silent_rank_0_ends_the_others(heartbeats):
    clock, ended = Clock(), []
    first = heartbeats(0)
    heartbeats(1, clock=clock, end=ended.append, timeout_s=30.0)
    first.stop()
    time.sleep(0.1)
    clock.seconds = 29.0
    time.sleep(0.1)
    assert ended == []
    clock.seconds = 31.0
    wait_until(lambda: ended)
    assert ended[0] == "no sign of life from rank 0 for 30 s; process of rank 1 ends"


def test_rank_0_knows_why_others_fail(heartbeats):
    first, second, third = heartbeats(0), heartbeats(1), heartbeats(2)
    assert third.report_failure("out of memory")
    assert second.report_failure("out of disk")
    assert first.wait_for_silent_ranks(60.0) == []  # does not wait
    wait_until(lambda: len(first.failures) == 2)
    assert first.failures == ["out of memory", "out of disk"]
    assert second.failures == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_reaches_rank_0(heartbeats, number):
    first, second = heartbeats(0), heartbeats(1)
    before = signal.getsignal(number)
    with second.forwarding_signals():
        assert first.stop_signal == 0
        os.kill(os.getpid(), number)
        wait_until(lambda: first.stop_signal)
    assert first.stop_signal == number
    assert second.stop_signal == 0
    assert signal.getsignal(number) is before


def test_a_store_that_is_gone_ends_another_rank(heartbeats):
    class GoneStore(distributed.HashStore):
        def add(self, key, amount):
            raise RuntimeError("Connection reset by peer\nmore lines")

    ended = []
    heartbeat = Heartbeat(
        GoneStore(), rank=1, size=2, timeout_s=1.0, say=print, end=ended.append, interval_s=0.01, seconds_to_end=0.05
    )
    heartbeat.start()
    wait_until(lambda: ended)
    assert ended == ["rank 0 does not answer (Connection reset by peer); process of rank 1 ends"]
