"""Signals that end a command, from its first line on: Ctrl-C, SIGTERM, and SIGHUP, which a closed terminal sends.

Imports little, so that txl handles them within a millisecond.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated", signal.SIGHUP: "terminal closed"}
"""Text of the last line, by signal."""
ENDING = tuple(WORDS)
IMPORT = "importlib._bootstrap"
SECONDS_TO_DELIVER_AGAIN = 0.01
"""Time until the code that dropped the exception of a signal has returned."""
SECONDS_OF_IMPORT = 0.05
"""Time between two checks whether an import has ended."""

_deferred: dict[int, threading.Timer] = {}
"""Signals that arrived during an import and have not been raised yet, each with the timer that delivers it again."""


class Terminated(SystemExit):
    """SIGTERM or SIGHUP has arrived."""


@contextmanager
def raising() -> Iterator[None]:
    """Let the signals raise KeyboardInterrupt or Terminated while the block runs, so that it can clean up.

    One that an import has deferred is raised at the end of the block at the latest, even if the block fails by then,
    and is not delivered again. If the block fails with an error after a signal was raised, the signal is raised: C code
    replaces the exception of a signal by an error of its own, as PyTorch does while it reads a sequence.
    """
    raised: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # During an import, an exception within a library's C code may end the process, as in the import of torch.
        if _imports(frame):
            _deferred[number] = deliver_again(number, SECONDS_OF_IMPORT)
        else:
            _forget_deferred()
            raised.append(number)
            raise _exception_of(number)

    before = {number: signal.signal(number, handle) for number in handled()}
    try:
        try:
            yield
        except Exception:
            if raised:
                raise _exception_of(raised[0]) from None
            raise
        finally:
            if _deferred:
                raise _exception_of(next(iter(_deferred)))
    finally:
        _forget_deferred()
        for number, handler in before.items():
            signal.signal(number, handler)


def ignore() -> None:
    """Ignore the signals: only the cleanup of libraries is left."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def deliver_again(number: int, seconds: float = SECONDS_TO_DELIVER_AGAIN) -> threading.Timer:
    """Send a signal to this process again, a little later; return the timer, which can be cancelled."""
    again = threading.Timer(seconds, os.kill, (os.getpid(), number))
    again.daemon = True
    again.start()
    return again


def number_of(ended: BaseException) -> int:
    """Return the signal that raised an exception."""
    return int(str(ended)) - 128 if isinstance(ended, Terminated) else signal.SIGINT


def handled(*always: int) -> list[int]:
    """Return `always`, and the other signals unless they are ignored, as nohup does with SIGHUP."""
    ignored = (signal.SIG_IGN, None)  # None: handled by C code
    return [number for number in ENDING if number in always or signal.getsignal(number) not in ignored]


def _forget_deferred() -> None:
    """Cancel the deliveries of deferred signals."""
    for again in _deferred.values():
        again.cancel()
    _deferred.clear()


def _exception_of(number: int) -> BaseException:
    """Return what a signal raises."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(128 + number)


def _imports(frame: FrameType | None) -> bool:
    """Return True if a frame or one of its callers imports a module."""
    while frame is not None and frame.f_globals.get("__name__") != IMPORT:
        frame = frame.f_back
    return frame is not None
