"""The reporter through which a workflow tells its caller what it is doing and how far it is."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

OnProgress = Callable[[str, float | None, float | None], None]
"""Called with a message or a description, and the number of units done and in all; None is unknown."""


@dataclass
class Progress:
    """How far one long step of a workflow is."""

    description: str
    total: float | None
    unit: str
    start: float
    """Units that were done before."""
    limit_s: float | None
    """Time that it takes at most."""
    on_reach: Callable[["Progress", str], None]
    """Called when more is done, with details."""

    def __post_init__(self) -> None:
        self.done = self.start

    def advance(self, amount: float, detail: str = "") -> None:
        """Report that `amount` more units are done."""
        self.reach(self.done + amount, detail)

    def reach(self, done: float, detail: str = "") -> None:
        """Report that `done` units are done in all."""
        self.done = done
        self.on_reach(self, detail)


class Reporter:
    """Passes messages and progress to a function; by default they are dropped."""

    def __init__(self, on_progress: OnProgress | None = None) -> None:
        self._on_progress: OnProgress = on_progress or (lambda text, done, total: None)

    def say(self, message: str) -> None:
        """Take one line about what the workflow is doing."""
        self._on_progress(message, None, None)

    def warn(self, message: str) -> None:
        """Take one line about something that has failed without ending the workflow."""
        self.say(message)

    def progress(
        self,
        description: str,
        total: float | None = None,
        unit: str = "",
        start: float = 0.0,
        limit_s: float | None = None,
    ) -> AbstractContextManager[Progress]:
        """Return a context manager that covers one long step of `total` units, `start` of which are done before.

        It takes `limit_s` seconds at most.
        """
        return self.showing(Progress(description, total, unit, start, limit_s, self._pass_on))

    def showing(self, progress: Progress) -> AbstractContextManager[Progress]:
        """Return a context manager that shows the progress of a step while it is taken."""
        return nullcontext(progress)

    def _pass_on(self, progress: Progress, detail: str) -> None:
        message = progress.description
        if detail:
            message += f": {detail}"
        self._on_progress(message, progress.done, progress.total)
