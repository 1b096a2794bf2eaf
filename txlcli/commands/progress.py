"""Shows the messages and the progress of a workflow on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.system.escapes import on_one_line
from txlcli.workflows.reporter import Progress, Reporter

if TYPE_CHECKING:
    from rich.progress import Progress as LiveBar

BAR_WIDTH = 12
PLAIN_INTERVAL_S = 10.0  # between lines if stderr is not a terminal


class TerminalReporter(Reporter):
    """Writes the messages and the progress of a workflow to stderr.

    Progress is a live bar on a terminal; elsewhere, and without `bars`, it is a plain line at intervals.
    """

    def __init__(self, *, bars: bool = True) -> None:
        super().__init__(lambda message, *_: console.say(message))
        self._bars = bars

    def warn(self, message: str) -> None:
        """Write one line to stderr, also with --quiet."""
        console.warn(message)

    @contextmanager
    def showing(self, progress: Progress) -> Iterator[Progress]:
        """Show the progress of one long step while the block runs; a narrow terminal folds it."""
        bar = _live_bar() if self._bars and console.shows_bars() else None
        with bar or nullcontext():
            progress.on_reach = _display(progress, bar)
            yield progress


def _display(progress: Progress, bar: "LiveBar | None") -> Callable[[Progress, str], None]:
    """Return the function that shows how far a step is: in the bar, or else as lines at intervals."""
    name = on_one_line(progress.description)
    started = time.monotonic()
    last = started
    task = None
    if bar is not None:
        task = bar.add_task(name, total=progress.total, completed=int(progress.start), state="")

    def show(progress: Progress, detail: str) -> None:
        nonlocal last
        now = time.monotonic()
        elapsed = max(now - started, 1e-9)
        since_start = progress.done - progress.start
        rate = on_one_line(detail) or f"{_amount(since_start / elapsed, progress.unit)}/s"
        state = ", ".join([_share(progress), rate, *_times(progress, elapsed, since_start)])
        if bar is not None and task is not None:
            bar.update(task, completed=progress.done, state=state)
        elif now - last >= PLAIN_INTERVAL_S:
            last = now
            console.say(f"{name}: {state}")

    return show


def _share(progress: Progress) -> str:
    """Return how much is done: 50%, or 4.0M tokens if the total is unknown, and steps by number."""
    if not progress.total:
        return _amount(progress.done, progress.unit)
    share = f"{progress.done / progress.total:.0%}"
    if progress.unit == "steps":
        return f"step {progress.done:,.0f} of {progress.total:,.0f}, {share}"
    return share


def _times(progress: Progress, elapsed: float, since_start: float) -> list[str]:
    """Return the time since the start and, if the total is known, the time left at this rate, or to the limit."""
    if not progress.total or since_start <= 0:
        return []
    left = elapsed * (progress.total - progress.done) / since_start
    if progress.limit_s is not None:
        left = max(0.0, min(left, progress.limit_s - elapsed))
    return [f"{timedelta(seconds=round(elapsed))} elapsed", f"{timedelta(seconds=round(left))} left"]


def _amount(number: float, unit: str) -> str:
    """Format an amount: 9.1M tokens, 9.1 MB, 0.21 steps."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            scaled = f"{number / limit:.1f}"
            return f"{scaled} {prefix}B" if unit == "B" else f"{scaled}{prefix} {unit}"
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _live_bar() -> "LiveBar":
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    name = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    state = TextColumn("{task.fields[state]}", markup=False, table_column=Column(overflow="fold"))
    return Progress(name, BarColumn(BAR_WIDTH), state, console=console.plain(sys.stderr), transient=True)
