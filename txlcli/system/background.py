"""Runs functions in a thread, one after another, while the caller continues."""

import threading
from collections.abc import Callable


class BackgroundWriter:
    """Functions that run one after another in the background.

    After an error no further function runs until `wait` or `raise_error` has raised it. The threads are not daemons:
    a process does not exit in the middle of a file unless it is killed.
    """

    def __init__(self) -> None:
        self._last: threading.Thread | None = None
        self._error: BaseException | None = None

    def start(self, function: Callable[[], None]) -> None:
        """Call a function in the background, after those that were started before."""
        before = self._last

        def run() -> None:
            if before is not None:
                before.join()
            if self._error is None:
                try:
                    function()
                except BaseException as error:
                    self._error = error

        self._last = threading.Thread(target=run, name="txl-writer")
        self._last.start()

    def settle(self) -> None:
        """Wait until all functions have ended, and leave an error to the next call that raises it."""
        if self._last is not None:
            self._last.join()
            self._last = None

    def wait(self) -> None:
        """Wait until all functions have ended, and raise the error of the one that failed."""
        self.settle()
        self.raise_error()

    def raise_error(self) -> None:
        """Raise the error of a function that has failed, if there is one, without waiting."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error
