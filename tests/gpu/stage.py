"""Rows of checks and measurements: each is computed in a child process, printed when it ends, and written to a file.

A row that fails, hangs or kills its process is recorded with its first cause, and the next row gets a new process:
after some errors of a GPU, nothing else works in the process that caused them. Nothing here needs PyTorch.
"""

import inspect
import json
import logging
import multiprocessing
import os
import signal
import time
import traceback
import warnings
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from textwrap import shorten

from txlcli.system.atomic_files import replacing

PASSED, FAILED, SKIPPED, NOT_RUN = "passed", "failed", "skipped", "not run"
SECONDS_TO_END = 5.0
"""For a process that has nothing more to do."""
MAX_FRAMES, MAX_MESSAGE, MAX_WARNINGS = 5, 700, 8
MAX_FIRST_ROWS = 3
FALLBACKS = ("not compiled", "cannot capture", "without CUDA graphs", "without Triton")
"""What warnings contain if a part of the default path was not taken."""


@dataclass(frozen=True)
class Figure:
    """A result that stands in the table at the end."""

    key: str
    """Of the results of a row."""
    form: str
    lower_is_better: bool = False


FIGURES = {
    figure.key: figure
    for figure in (
        Figure("tokens_per_s", "{:,.0f} tokens/s"),
        Figure("ms_per_step", "{:.2f} ms a step", lower_is_better=True),
        Figure("ms_per_token", "{:.3f} ms a token", lower_is_better=True),
        Figure("bytes_per_s", "{:.3g} bytes/s"),
        Figure("flops_per_s", "{:.3g} FLOP/s"),
        Figure("largest_error", "{:.1e} from eager", lower_is_better=True),
        Figure("difference_nats", "{:.1e} nats from autocast", lower_is_better=True),
        Figure("ratio", "{:.2f} times TransfoXL"),
        Figure("tests_passed", "{} tests passed"),
        Figure("steps", "{:,} steps"),
        Figure("test_ppl", "test ppl {:.2f}", lower_is_better=True),
    )
}
"""The first that a row has is shown, unless the row has a goal for another."""


class Skip(Exception):
    """Raised by a row that does not apply to this machine."""


@dataclass(frozen=True)
class Ended:
    status: str
    reason: str = ""
    frames: tuple[str, ...] = ()
    """Where the first cause of a failure was raised: the innermost frames last."""
    details: str = ""
    """Traceback of a failure."""


class Worker:
    """A process that computes one row at a time, and leads a group of processes."""

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
        """End the process and those that it started, whatever they are doing."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()  # before it has its group
        self._process.join()
        self._connection.close()


def _serve(connection):
    """Compute rows until the other end is closed."""
    os.setpgid(0, 0)
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
        with _told(tell):
            if "tell" in inspect.signature(function).parameters:
                arguments["tell"] = tell
            result = function(**arguments)
            for part in result if inspect.isgenerator(result) else [result or {}]:
                tell(part)
    except Skip as reason:
        return SKIPPED, str(reason)
    except BaseException as error:  # also an exit, and what pytest raises
        reason, *frames = cause(error)
        return FAILED, reason, tuple(frames), traceback.format_exc()
    return (PASSED,)


class _Causes(logging.Handler):
    """Keeps the causes of failures that the program logs, since it goes on without what failed."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        if record.exc_info:
            self.lines += cause(record.exc_info[1])


@contextmanager
def _told(tell):
    """Tell the warnings of a row, and the causes of what it fell back from."""
    logger, causes = logging.getLogger("txlcli"), _Causes()
    logger.setLevel(logging.DEBUG)
    logger.addHandler(causes)
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
    finally:
        logger.removeHandler(causes)
        texts = dict.fromkeys(shorten(str(warning.message), MAX_MESSAGE) for warning in caught)
        if texts:
            tell({"warnings": list(texts)[:MAX_WARNINGS]})
        fell_back = [text for text in texts if any(part in text for part in FALLBACKS)]
        if fell_back or causes.lines:
            tell({"fell_back": [*fell_back, *causes.lines]})


def cause(error):
    """Return lines about the first cause of an error: what it is, and the innermost frames of the program."""
    first, seen = error, {id(error)}
    while (earlier := first.__cause__ or (None if first.__suppress_context__ else first.__context__)) is not None:
        if id(earlier) in seen:
            break
        seen.add(id(earlier))
        first = earlier
    frames = traceback.extract_tb(first.__traceback__)
    own = [frame for frame in frames if _is_own(frame)]
    if not own:
        own = [frame for frame in traceback.extract_tb(error.__traceback__) if _is_own(frame)]
    shown = [*own[-MAX_FRAMES:], *(frame for frame in frames[-1:] if not _is_own(frame))]
    message = " ".join(str(first).split())[:MAX_MESSAGE]
    lines = [f"at {'/'.join(Path(frame.filename).parts[-4:])}:{frame.lineno} in {frame.name}" for frame in shown]
    return [f"{type(first).__name__}: {message}".strip(), *lines]


def _is_own(frame):
    return "/txlcli/" in frame.filename or "/tests/" in frame.filename


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
        return self._seconds - (time.monotonic() - self._started)

    def run(self, row, function, *, at_most_s=None, goal=None, fresh=False, **arguments):
        """Compute a row; return its results, or None if there are none or the row is not to be computed.

        Args:
            row: its name.
            function: of a module, called in the child process. It returns a dictionary, or yields parts of one; it may
                have an argument `tell`, a function that takes further parts while it is called.
            at_most_s: a row that takes longer than this fails; None for all the time that is left.
            goal: a key of the results and its goal.
            fresh: compute it in a new process.
            arguments: of the function.
        """
        if not self.includes(row):
            return None
        if fresh:
            self._end_worker()
        started, results = time.monotonic(), {"row": row}
        if goal is not None:
            results["goal"] = goal
        self.rows.append(results)
        if self.seconds_left <= 0:
            ended = Ended(NOT_RUN, "no time was left")
        else:
            ended = self._compute(results, function, arguments, at_most_s)
        results |= {"status": ended.status, "seconds": round(time.monotonic() - started, 3)}
        for key in ("reason", "frames", "details"):
            if getattr(ended, key):
                results[key] = getattr(ended, key)
        self._write()
        self._print(results)
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
        if ended.status not in (PASSED, SKIPPED) or "fell_back" in results:
            self._end_worker()  # what failed to compile once is not compiled again in its process
        return ended

    def _print(self, row):
        """Print what a row found, and for a failure its first cause and what it fell back to."""
        text = row.get("reason") or _figure(row)
        print(f"{row['status']:8} {row['row']}, {row['seconds']:.0f} s: {text}", flush=True)
        lines = [*row.get("frames", ()), *row.get("lines", ())]
        if "path" in row:
            lines.append(f"path: {row['path']}")
        lines += [f"fell back: {line}" for line in row.get("fell_back", ())]
        for line in lines:
            print(f"           {line}", flush=True)

    def end(self) -> int:
        """Write the results for the last time, and print the table; return the exit code: 1 if a row failed."""
        self._end_worker()
        counts = {status: self.count(status) for status in (PASSED, FAILED, SKIPPED, NOT_RUN)}
        if len(self.rows) == 1 and self._only is not None:
            print(f'--only "{self._only}": no row has this in its name; leave it out to see all names')
            return 2
        self._document |= {"complete": True, **{status.replace(" ", "_"): number for status, number in counts.items()}}
        self._write()
        lines = [("row", "status", "s", "figure", "goal", "ratio", "path"), *map(_line, self.rows)]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        for line in lines:
            print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
        for row in first_rows(self.rows):
            print(f"look first at {row['row']}: {_wrong_with(row)}")
        print(", ".join(f"{number} {status}" for status, number in counts.items()), self._file, sep="; ", flush=True)
        return int(counts[FAILED] > 0)

    def count(self, status):
        return sum(row.get("status") == status for row in self.rows)

    def _end_worker(self):
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def _write(self):
        with replacing(self._file) as temporary:
            temporary.write_text(json.dumps(self._document, indent=1) + "\n", encoding="utf-8")


def _chosen(row):
    key = row["goal"][0] if "goal" in row else next((key for key in FIGURES if key in row), None)
    return FIGURES[key] if key in row else None


def _figure(row):
    figure = _chosen(row)
    return figure.form.format(row[figure.key]) if figure else ""


def ratio_of(row):
    """Return how near the figure of a row is to its goal, 1 or more if it is reached; None without one of them."""
    key, wanted = row.get("goal", (None, 0.0))
    if key not in row:
        return None
    return wanted / row[key] if FIGURES[key].lower_is_better else row[key] / wanted


def first_rows(rows):
    """Return the rows to look at first: those that failed, then that fell back, then that are farthest from a goal."""
    failed = [row for row in rows if row["status"] == FAILED]
    fell_back = [row for row in rows if row["status"] != FAILED and "fell_back" in row]
    missed = [row for row in rows if row not in (*failed, *fell_back) and (ratio_of(row) or 1.0) < 1.0]
    return [*failed, *fell_back, *sorted(missed, key=ratio_of)][:MAX_FIRST_ROWS]


def _wrong_with(row):
    """Return why a row is one to look at first."""
    if row["status"] == FAILED:
        return row["reason"]
    return row["fell_back"][0] if "fell_back" in row else f"{_figure(row)}, {ratio_of(row):.2f} of its goal"


def _line(row):
    """Return the cells of a row of the table; a failed row has its reason in place of figures."""
    figure, goal, ratio = _figure(row), "", ""
    if row["status"] != PASSED and not figure:
        figure = row.get("reason", "")[:60]
    if "goal" in row:
        key, wanted = row["goal"]
        goal = FIGURES[key].form.format(wanted)
    if ratio_of(row) is not None:
        ratio = f"{ratio_of(row):.2f}"
    path = row.get("path", "") + (" (fell back)" if "fell_back" in row else "")
    return row["row"], row["status"], f"{row['seconds']:.0f}", figure, goal, ratio, path


def releases(*packages):
    """Return the installed releases of packages, by their names; those without metadata are left out."""
    found = {}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def describe_machine(device):
    """Return what numbers depend on: device, libraries, releases."""
    import platform

    import torch

    from txlcli.core.kernels.device import describe, pick_device

    found = pick_device(device)
    facts = {"name": describe(found), "cudnn": torch.backends.cudnn.version(), "cuda": torch.version.cuda}
    if found.type == "cuda":
        properties = torch.cuda.get_device_properties(found)
        names = ("major", "minor", "total_memory", "multi_processor_count")
        facts |= {name: getattr(properties, name) for name in names}
    facts |= {"python": platform.python_version(), "platform": platform.platform(), "processors": os.cpu_count()}
    facts |= releases("torch", "triton", "numpy", "transformers", "typer")
    yield {"machine": facts}
    yield {"lines": [", ".join(f"{name} {value}" for name, value in facts.items())]}
