"""The callback through which a workflow tells its caller what it is doing and how far it is."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol


class Step(Protocol):
    """One long step of a workflow."""

    def advance(self, amount: float, detail: str = "") -> None:
        """Report that `amount` more units are done."""

    def reach(self, done: float, detail: str = "") -> None:
        """Report that `done` units are done in all."""


class Reporter(Protocol):
    """Receives messages and progress; `console.TerminalReporter` writes them to stderr."""

    def say(self, message: str) -> None:
        """Take one line about what the workflow is doing."""

    def warn(self, message: str) -> None:
        """Take one line about something that has failed without ending the workflow."""

    def progress(
        self,
        description: str,
        total: float | None = None,
        unit: str = "",
        start: float = 0.0,
        limit_s: float | None = None,
    ) -> AbstractContextManager[Step]:
        """Return a context manager that covers one long step of `total` units, `start` of which are done before.

        It takes `limit_s` seconds at most.
        """


OnProgress = Callable[[str, float | None, float | None], None]
"""Called with a message or a description, and the number of units done and in all; None is unknown."""


@dataclass
class _CallbackStep:
    on_progress: OnProgress
    description: str
    total: float | None
    done: float

    def advance(self, amount: float, detail: str = "") -> None:
        self.reach(self.done + amount, detail)

    def reach(self, done: float, detail: str = "") -> None:
        self.done = done
        self.on_progress(f"{self.description}: {detail}" if detail else self.description, done, self.total)


class CallbackReporter:
    """Passes messages and progress to a function; by default they are dropped."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._on_progress: OnProgress = on_progress or (lambda text, done, total: None)

    def say(self, message: str) -> None:
        """Pass on the message."""
        self._on_progress(message, None, None)

    def warn(self, message: str) -> None:
        """Pass on the message."""
        self.say(message)

    def progress(
        self,
        description: str,
        total: float | None = None,
        unit: str = "",
        start: float = 0.0,
        limit_s: float | None = None,
    ) -> AbstractContextManager[Step]:
        """Return a step that passes on what it reaches."""
        return nullcontext(_CallbackStep(self._on_progress, description, total, start))
