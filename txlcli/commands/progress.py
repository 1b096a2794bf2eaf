"""Shows the messages and the progress of a workflow on stderr."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.system.escapes import on_one_line
from txlcli.workflows.reporter import Reporter, Step

if TYPE_CHECKING:
    from rich.progress import Progress

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
    def showing(self, step: Step) -> Iterator[Step]:
        """Show the progress of one long step while the block runs; a narrow terminal folds it."""
        bar = _live_bar() if self._bars and console.shows_bars() else None
        with bar or nullcontext():
            step.on_reach = _display(step, bar)
            yield step


def _display(step: Step, bar: "Progress | None") -> Callable[[Step, str], None]:
    """Return the function that shows how far a step is: in the bar, or else as lines at intervals."""
    name = on_one_line(step.description)
    started = time.monotonic()
    last = started
    task = None
    if bar is not None:
        task = bar.add_task(name, total=step.total, completed=int(step.start), state="")

    def show(step: Step, detail: str) -> None:
        nonlocal last
        now = time.monotonic()
        elapsed = max(now - started, 1e-9)
        since_start = step.done - step.start
        rate = on_one_line(detail) or f"{_amount(since_start / elapsed, step.unit)}/s"
        state = ", ".join([_share(step), rate, *_times(step, elapsed, since_start)])
        if bar is not None and task is not None:
            bar.update(task, completed=step.done, state=state)
        elif now - last >= PLAIN_INTERVAL_S:
            last = now
            console.say(f"{name}: {state}")

    return show


def _share(step: Step) -> str:
    """Return how much is done: 50%, or 4.0M tokens if the total is unknown, and steps by number."""
    if not step.total:
        return _amount(step.done, step.unit)
    share = f"{step.done / step.total:.0%}"
    if step.unit == "steps":
        return f"step {step.done:,.0f} of {step.total:,.0f}, {share}"
    return share


def _times(step: Step, elapsed: float, since_start: float) -> list[str]:
    """Return the time since the start and, if the total is known, the time left at this rate, or to the limit."""
    if not step.total or since_start <= 0:
        return []
    left = elapsed * (step.total - step.done) / since_start
    if step.limit_s is not None:
        left = max(0.0, min(left, step.limit_s - elapsed))
    return [f"{timedelta(seconds=round(elapsed))} elapsed", f"{timedelta(seconds=round(left))} left"]


def _amount(number: float, unit: str) -> str:
    """Format an amount: 9.1M tokens, 9.1 MB, 0.21 steps."""
    for limit, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= limit:
            scaled = f"{number / limit:.1f}"
            return f"{scaled} {prefix}B" if unit == "B" else f"{scaled}{prefix} {unit}"
    return f"{number:.0f} {unit}" if number >= 10 else f"{number:.2g} {unit}"


def _live_bar() -> "Progress":
    from rich.progress import BarColumn, Progress, TextColumn
    from rich.table import Column

    name = TextColumn("{task.description}", markup=False, table_column=Column(overflow="fold"))
    state = TextColumn("{task.fields[state]}", markup=False, table_column=Column(overflow="fold"))
    return Progress(name, BarColumn(BAR_WIDTH), state, console=console.plain(sys.stderr), transient=True)
