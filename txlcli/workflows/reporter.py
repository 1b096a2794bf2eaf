"""The callback through which a workflow tells its caller what it is doing and how far it is."""

from contextlib import AbstractContextManager, nullcontext


class Step:
    """One long step of a workflow; this class ignores its progress."""

    def advance(self, amount: float, detail: str = "") -> None:
        """Report that `amount` more units are done."""

    def reach(self, done: float, detail: str = "") -> None:
        """Report that `done` units are done in all."""

    def describe(self, detail: str) -> None:
        """Replace the detail that is shown beside the progress."""


class Reporter:
    """Receives messages and progress; this class ignores them, `console.TerminalReporter` writes them to stderr."""

    def say(self, message: str) -> None:
        """Take one line about what the workflow is doing."""

    def progress(self, description: str, total: float | None = None, unit: str = "") -> AbstractContextManager[Step]:
        """Return a context manager that covers one long step of `total` units."""
        return nullcontext(Step())
