"""Signals that end a command, from its first line on: Ctrl-C, SIGTERM, SIGHUP of a closed terminal, and warnings.

Batch systems warn a job before they kill it: by SIGUSR1, SIGUSR2, or SIGXCPU, which repeats every second. Imports
little, so that txl handles signals within a millisecond.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import FrameType
from typing import NoReturn

WARNINGS = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
WORDS: dict[int, str] = {
    signal.SIGINT: "interrupted",
    signal.SIGTERM: "terminated",
    signal.SIGHUP: "terminal closed",
    **{number: f"stopped by {number.name}" for number in WARNINGS},
}
"""Text of the last line, by signal."""
ENDING = tuple(WORDS)
Handler = Callable[[int, FrameType | None], object] | signal.Handlers
IMPORT = "importlib._bootstrap"
_explanation = ""


class Terminated(SystemExit):
    """Another signal than Ctrl-C has arrived: `number`."""

    def __init__(self, number: int) -> None:
        super().__init__(128 + number)
        self.number = number


@contextmanager
def raising() -> Iterator[None]:
    """Let the signals raise KeyboardInterrupt or Terminated while the block runs, so that it can clean up.

    During an import they end the process at once. If the block fails with an error after a signal was raised, the
    signal is raised: C code replaces the exception of a signal by an error of its own, as PyTorch does while it reads a
    sequence.
    """
    raised: list[int] = []

    def handle(number: int, frame: FrameType | None) -> None:
        # During an import, an exception within a library's C code may end the process, as in the import of torch.
        if _imports(frame):
            end(number)
        if raised and number in WARNINGS:
            return
        raised.append(number)
        raise _exception_of(number)

    with _handling(handle, handled()):
        try:
            yield
        except Exception:
            if raised:
                raise _exception_of(raised[0]) from None
            raise


@contextmanager
def _handling(action: Handler, numbers: list[int]) -> Iterator[None]:
    """Set the action for these signals while the block runs; Python allows it in its main thread only."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, action) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            if signal.getsignal(number) == action:  # `ignore` stays in force
                signal.signal(number, handler)


def end(number: int, frame: FrameType | None = None) -> NoReturn:
    """End the process at once, with one line of rank 0, which ends the others itself."""
    if _is_main():
        os.write(2, f"{last_line(number)}\n".encode())
    os._exit(128 + number)


def explain_end(explanation: str) -> None:
    """Set what the last line says from now on after the word of the signal: what is saved, and how to continue."""
    global _explanation  # noqa: PLW0603 - the handlers of signals know no command
    _explanation = explanation


def last_line(number: int) -> str:
    """Return the last line of a command that a signal ends."""
    if not _explanation:
        return WORDS[number]
    return f"{WORDS[number]}; {_explanation}"


def _is_main() -> bool:
    """Return True for rank 0, without imports: the handlers are installed before them."""
    return "WORLD_SIZE" not in os.environ or os.environ.get("RANK", "0") == "0"


def handling(action: Handler) -> AbstractContextManager[None]:
    """Set the action for all these signals while the block runs.

    While processes wait for each other in PyTorch, no Python handler is called: only the default action ends them.
    """
    return _handling(action, handled(signal.SIGINT, signal.SIGTERM))


def silent() -> AbstractContextManager[None]:
    """Let a signal end this process without a message while the block runs, unless it is of rank 0."""
    return nullcontext() if _is_main() else handling(signal.SIG_DFL)


def ignore() -> None:
    """Ignore the signals: only the cleanup of libraries is left."""
    for number in ENDING:
        signal.signal(number, signal.SIG_IGN)


def number_of(ended: BaseException) -> int:
    """Return the signal that raised an exception."""
    return ended.number if isinstance(ended, Terminated) else signal.SIGINT


def handled(*always: int) -> list[int]:
    """Return `always`, and the other signals unless they are ignored, as nohup does with SIGHUP."""
    ignored = (signal.SIG_IGN, None)  # None: handled by C code
    return [number for number in ENDING if number in always or signal.getsignal(number) not in ignored]


def _exception_of(number: int) -> BaseException:
    """Return what a signal raises."""
    return KeyboardInterrupt() if number == signal.SIGINT else Terminated(number)


def _imports(frame: FrameType | None) -> bool:
    """Return True if a frame or one of its callers imports a module."""
    while frame is not None and frame.f_globals.get("__name__") != IMPORT:
        frame = frame.f_back
    return frame is not None
