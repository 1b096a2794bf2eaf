"""Rows of measurements, each computed in a child process; a file holds the results after every row.

A row that fails, hangs or kills its process is recorded, and the next row gets a new process: after some errors of a
GPU, nothing else works in the process that caused them.
"""

import inspect
import json
import multiprocessing
import time
import traceback
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from txlcli import console
from txlcli.system.atomic_files import replacing

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
SECONDS_TO_END = 5.0
"""For a process that has nothing more to do."""
MAX_ROWS = 36
"""Rows of the table at the end: those that failed, and as many others."""
NUMBERS = {
    "tokens_per_s": "{:,.0f} tokens/s",
    "bytes_per_s": "{:.3g} bytes/s",
    "flops_per_s": "{:.3g} FLOP/s",
    "difference_nats": "{:.1e} nats from autocast",
    "ratio": "{:.2f} times as fast as TransfoXL",
    "passed": "{} tests passed",
    "steps": "{:,} steps",
    "test_ppl": "test ppl {:.2f}",
}
"""Results that the table at the end shows, the first that a row has."""


class Skip(Exception):
    """Raised by a row that does not apply to this machine."""


@dataclass(frozen=True)
class Ended:
    """How a row ended."""

    status: str
    reason: str = ""
    details: str = ""
    """Traceback of a failure."""


class Worker:
    """A process that computes one row at a time."""

    def __init__(self):
        context = multiprocessing.get_context("spawn")
        self._connection, other = context.Pipe()
        self._process = context.Process(target=_serve, args=(other,), daemon=True)
        self._process.start()
        other.close()

    def run(self, function, arguments, *, seconds, receive):
        """Call a function there; pass every part of its result to `receive`, and return how it ended."""
        deadline = time.monotonic() + seconds
        try:
            self._connection.send((function, arguments))
            while self._connection.poll(max(0.0, deadline - time.monotonic())):
                kind, content = self._connection.recv()
                if kind == "ended":
                    return Ended(*content)
                receive(json.loads(content))
        except (EOFError, OSError):
            self._process.join(SECONDS_TO_END)
            return Ended(FAILED, f"its process ended with exit code {self._process.exitcode}")
        return None

    def end(self):
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.join()
        self._connection.close()


def _serve(connection):
    """Compute rows until the other end is closed."""
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            return
        connection.send(("ended", _compute(connection, function, arguments)))


def _compute(connection, function, arguments):
    def tell(part):
        connection.send(("part", json.dumps(part, allow_nan=False)))

    try:
        if "tell" in inspect.signature(function).parameters:
            arguments["tell"] = tell
        result = function(**arguments)
        for part in result if inspect.isgenerator(result) else [result or {}]:
            tell(part)
    except Skip as reason:
        return SKIPPED, str(reason)
    except BaseException as error:  # also an exit, and what pytest raises
        return FAILED, f"{type(error).__name__}: {error}".strip(), traceback.format_exc()
    return (PASSED,)


class Stage:
    """Computes rows in turn and writes their results.

    Args:
        facts: about all rows, for the file.
        json_file: receives all results, after every row.
        minutes: time for all rows.
        only: part of the names of the rows to compute; None computes all.
    """

    def __init__(self, *, facts, json_file, minutes, only=None):
        self._file, self._seconds, self._only = json_file, 60 * minutes, only
        self._started, self._worker = time.monotonic(), None
        self.rows = []
        self._document = {**facts, "minutes": minutes, "complete": False, "rows": self.rows}

    @property
    def seconds_left(self):
        """Time left for further rows."""
        return self._seconds - (time.monotonic() - self._started)

    def run(self, row, function, *, at_most_s=None, **arguments):
        """Compute a row; return its results, or None if there are none or the row is not to be computed.

        Args:
            row: its name.
            function: of a module, called in the child process. It returns a dictionary, or yields parts of one; it may
                have an argument `tell`, a function that takes further parts while it is called.
            at_most_s: a row that takes longer than this fails; None for all the time that is left.
            arguments: of the function.
        """
        if not self.includes(row):
            return None
        started, results = time.monotonic(), {"row": row}
        self.rows.append(results)
        if self.seconds_left <= 0:
            ended = Ended(NOT_RUN, "no time was left")
        else:
            ended = self._compute(results, function, arguments, at_most_s)
        results |= {"status": ended.status, "seconds": round(time.monotonic() - started, 3)}
        results |= {"reason": ended.reason} if ended.reason else {}
        results |= {"details": ended.details} if ended.details else {}
        self._write()
        console.say(f"{ended.status:8} {row}" + (f": {ended.reason}" if ended.reason else ""))
        return results if ended.status == PASSED else None

    def includes(self, row):
        """Return True if a row of this name is to be computed."""
        return self._only is None or self._only in row or not self.rows

    def _compute(self, results, function, arguments, at_most_s):
        def receive(part):
            results.update(part)
            self._write()

        left = self.seconds_left
        seconds = left if at_most_s is None else min(left, at_most_s)
        self._worker = self._worker or Worker()
        ended = self._worker.run(function, arguments, seconds=seconds, receive=receive)
        if ended is None and seconds < left:
            ended = Ended(FAILED, f"it took longer than {at_most_s:g} s")
        ended = ended or Ended(NOT_RUN, "it was stopped, since no time was left")
        if ended.status not in (PASSED, SKIPPED):
            self._end_worker()
        return ended

    def end(self) -> int:
        """Write the results for the last time; return the exit code: 1 if a row failed."""
        self._end_worker()
        counts = {status: self.count(status) for status in (PASSED, FAILED, SKIPPED, NOT_RUN)}
        if len(self.rows) == 1 and self._only is not None:
            console.complain(f'--only "{self._only}": no row has this in its name; leave it out to see all names')
            return 2
        self._document |= {"complete": True, **{status.replace(" ", "_"): number for status, number in counts.items()}}
        self._write()
        shown = sorted(self.rows, key=lambda row: row["status"] != FAILED)[:MAX_ROWS]
        lines = [[row["row"], row["status"], f"{row['seconds']:.0f}", self._number(row)] for row in shown]
        told = ", ".join(f"{number} {status}" for status, number in counts.items())
        console.show_table("Results", ("row", "status", "s", "result"), lines, [f"{told}; {self._file}"])
        return int(counts[FAILED] > 0)

    @staticmethod
    def _number(row):
        if row["status"] != PASSED:
            return row.get("reason", "")[:80]
        return next((told.format(row[key]) for key, told in NUMBERS.items() if key in row), "")

    def count(self, status):
        """Return the number of rows that ended so."""
        return sum(row.get("status") == status for row in self.rows)

    def _end_worker(self):
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _write(self):
        with replacing(self._file) as temporary:
            temporary.write_text(json.dumps(self._document, indent=1) + "\n", encoding="utf-8")


def describe_machine(device):
    """Return what numbers depend on: device, libraries, releases."""
    import torch

    from txlcli.commands import info
    from txlcli.core.kernels.device import describe, pick_device

    found = pick_device(device)
    facts = {"name": describe(found), "cudnn": torch.backends.cudnn.version()}
    if found.type == "cuda":
        properties = torch.cuda.get_device_properties(found)
        names = ("major", "minor", "total_memory", "multi_processor_count")
        facts |= {name: getattr(properties, name) for name in names}
    facts |= {package: _release(package) for package in ("triton", "transformers")}
    return {"machine": facts | info.describe(Path(), Path())}


def _release(package):
    """Return the release of a package; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
