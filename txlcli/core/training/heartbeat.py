"""Signs of life, signals and failures of the processes of a training, exchanged beside its steps.

A thread of each process counts in a store that all of them share. Rank 0 sees which process is silent or has failed,
and the other ranks see whether rank 0 is. Python calls no signal handler while a process waits for others in
PyTorch, so the thread also passes signals on: the interpreter writes their numbers to a socket at once.
"""

import contextlib
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

from torch import distributed

from txlcli.system import launcher, signals

INTERVAL_S = 1.0
"""Time between two signs of life."""
SECONDS_UNTIL_NAMED = 10.0
"""Silence of a process after which rank 0 names it."""
SECONDS_TO_END = 30.0
"""Time for this process to end by itself, once the store is gone with the process that served it."""

SECONDS_TO_REPORT = 5.0
"""Time for the thread to tell rank 0 that this process has failed."""


def _exit(message: str) -> None:
    """End this process, whose main thread may hang in PyTorch, with one line."""
    os.write(2, f"error: {message}\n".encode())
    os._exit(1)


class Heartbeat:
    """Thread of one process that reports its life and its signals, and watches the others.

    Args:
        store: of all processes; used by this thread alone.
        rank: of this process.
        size: number of processes.
        timeout_s: silence of rank 0 after which another rank ends.
        say: receives a line about a silent process, on rank 0.
        end: ends this process with a message.
    """

    def __init__(
        self,
        store: distributed.Store,
        *,
        rank: int,
        size: int,
        timeout_s: float,
        say: Callable[[str], None],
        end: Callable[[str], None] = _exit,
        interval_s: float = INTERVAL_S,
        seconds_to_end: float = SECONDS_TO_END,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._rank, self.timeout_s, self._say, self._end = store, rank, timeout_s, say, end
        self._interval_s, self._seconds_to_end, self._clock = interval_s, seconds_to_end, clock
        self._watched = range(1, size) if rank == 0 else range(1)
        self._beats = dict.fromkeys(self._watched, 0)
        self._seen_at = dict.fromkeys(self._watched, clock())
        self._named: set[int] = set()
        self.stop_signal = 0
        """Number of the signal that another process received, on rank 0; 0 for none."""
        self.failures: list[str] = []
        """Why other processes have failed, as far as they could tell, on rank 0; the first one first."""
        self._own_failure: str | None = None
        self._told_failure = threading.Event()
        self._reader, self._writer = socket.socketpair()
        self._reader.setblocking(False)
        self._writer.setblocking(False)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True, name="heartbeat")

    def start(self) -> None:
        """Begin to report and to watch."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread; a call that waits for the store is left alone."""
        self._stopped.set()
        self._thread.join(2 * self._interval_s)

    @contextlib.contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Pass the signals of this process on to rank 0 instead of acting on them; for the main thread."""

        def ignore(number: int, _: FrameType | None) -> None: ...

        before = {number: signal.signal(number, ignore) for number in signals.handled(signal.SIGINT, signal.SIGTERM)}
        descriptor = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(descriptor)
            for number, handler in before.items():
                signal.signal(number, handler)

    def report_failure(self, reason: str) -> bool:
        """Tell rank 0 why this process fails; return True if it can read so."""
        self._own_failure = reason
        with contextlib.suppress(BlockingIOError):
            self._writer.send(b"\0")  # wakes the thread
        return self._told_failure.wait(SECONDS_TO_REPORT)

    def silent_ranks(self, longer_than_s: float) -> list[int]:
        """Return the watched ranks without a sign of life for this time."""
        now = self._clock()
        return [rank for rank in self._watched if now - self._seen_at[rank] > longer_than_s]

    def wait_for_silent_ranks(self, seconds: float) -> list[int]:
        """Return the watched ranks that give no sign of life for this time, which begins now.

        Return early, and none of them, if a process has said why it failed.
        """
        until = time.monotonic() + seconds + self._interval_s
        while time.monotonic() < until:
            if self.failures:
                return []
            time.sleep(self._interval_s / 10)
        return self.silent_ranks(seconds)

    def _run(self) -> None:
        try:
            while not self._stopped.is_set():
                self._exchange()
                self._check_watched()
                select.select([self._reader], [], [], self._interval_s)
        except RuntimeError as error:  # the process that serves the store has ended, or does not answer
            if self._rank and not self._stopped.wait(self._seconds_to_end):
                self._end(f"rank 0 does not answer ({str(error).splitlines()[0]}); process of rank {self._rank} ends")

    def _exchange(self) -> None:
        """Report life, signals and failure, and read those of the others."""
        self._store.add(f"beat/{self._rank}", 1)
        for number in self._received():
            self._store.add(f"signal/{number}", 1)
        if self._own_failure is not None and not self._told_failure.is_set():
            self._store.set(f"failure/{self._store.add('failures', 1)}", self._own_failure)
            self._told_failure.set()
        for rank in self._watched:
            beats = self._store.add(f"beat/{rank}", 0)
            if beats != self._beats[rank]:
                self._beats[rank], self._seen_at[rank] = beats, self._clock()
        if self._rank == 0:
            self.failures += self._new_failures()
        if self._rank == 0 and not self.stop_signal:
            self.stop_signal = next((number for number in signals.ENDING if self._store.add(f"signal/{number}", 0)), 0)

    def _new_failures(self) -> list[str]:
        """Return the reasons that failed processes have written since the last call, in their order."""
        numbers = range(len(self.failures) + 1, self._store.add("failures", 0) + 1)
        return [self._store.get(f"failure/{number}").decode() for number in numbers]

    def _received(self) -> list[int]:
        """Return the signals of this process since the last call; the death of its launcher counts as SIGTERM."""
        numbers = []
        with contextlib.suppress(BlockingIOError):
            numbers = [number for number in self._reader.recv(64) if number in signals.ENDING]
        return numbers or ([signal.SIGTERM] if self._rank and launcher.is_orphan() else [])

    def _check_watched(self) -> None:
        """Name silent processes on rank 0, each once; end another rank if rank 0 is silent for too long."""
        if self._rank:
            if self.silent_ranks(self.timeout_s):
                self._end(f"no sign of life from rank 0 for {self.timeout_s:,.0f} s; process of rank {self._rank} ends")
            return
        silent = self.silent_ranks(SECONDS_UNTIL_NAMED)
        for rank in sorted(set(silent) - self._named):
            self._say(
                f"no sign of life from rank {rank} for {SECONDS_UNTIL_NAMED:.0f} s; waiting for it, at most "
                f"train.rank_timeout = {self.timeout_s:,.0f} s"
            )
        self._named = set(silent)
