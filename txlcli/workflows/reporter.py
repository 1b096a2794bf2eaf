"""The callback through which a workflow tells its caller what it is doing and how far it is."""

from contextlib import AbstractContextManager, nullcontext
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

    def progress(
        self, description: str, total: float | None = None, unit: str = "", start: float = 0.0
    ) -> AbstractContextManager[Step]:
        """Return a context manager that covers one long step of `total` units, `start` of which are done before."""


class _SilentStep:
    def advance(self, amount: float, detail: str = "") -> None: ...

    def reach(self, done: float, detail: str = "") -> None: ...


class SilentReporter:
    """Drops messages and progress."""

    def say(self, message: str) -> None:
        """Drop the message."""

    def progress(
        self, description: str, total: float | None = None, unit: str = "", start: float = 0.0
    ) -> AbstractContextManager[Step]:
        """Return a step that shows nothing."""
        return nullcontext(_SilentStep())
