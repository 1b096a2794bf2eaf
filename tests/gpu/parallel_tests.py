"""Runs files of tests in parallel processes, and keeps the result of every test that ended, whatever happens then."""

import collections
import contextlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.gpu.stage import Skip

NOT_FOR_TESTS = 3
"""Cores that the processes of the tests leave to others."""
NEEDED = ("pytest", "xdist", "hypothesis", "typer")
POLL_S = 1.0
MAX_FAILURES = 6
"""Failed tests whose last line is printed."""
NO_TESTS = 5
"""Exit code of pytest if it has found no test."""


def run(files, seconds, also=()):
    """Run files of tests, and yield the results so far: again whenever a test has ended.

    Args:
        files: of the tests.
        seconds: limit of all tests. What still runs then is killed with the group of processes of this row.
        also: commands that run at the same time; how they end does not matter.
    """
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise Skip(f"{', '.join(missing)} cannot be imported; see python -m tests.gpu wheels")
    deadline = time.monotonic() + seconds
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    others = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in also]
    with tempfile.TemporaryDirectory() as directory:
        log, output = Path(directory) / "tests.jsonl", Path(directory) / "output"
        log.touch()
        with output.open("w") as file:
            tests = subprocess.Popen(_command(files, log), env=environment, stdout=file, stderr=subprocess.STDOUT)
        found = None
        while found is None or (tests.poll() is None and time.monotonic() < deadline):
            with contextlib.suppress(subprocess.TimeoutExpired):
                tests.wait(max(0.0, min(POLL_S, deadline - time.monotonic())))
            latest = results(log)
            if latest != found:
                found = latest
                yield found
        is_stopped = tests.poll() is None
        if is_stopped:
            tests.kill()  # its workers end when it is gone
            tests.wait()
        found = results(log)
        said = output.read_text(errors="replace")
    for other in others:
        with contextlib.suppress(subprocess.TimeoutExpired):
            other.wait(max(0.0, deadline - time.monotonic()))
        other.kill()
    yield {**found, "lines": [f"{name}: {_last_line(text)}" for name, text in found["failed"].items()][:MAX_FAILURES]}
    if is_stopped:
        running = ", ".join(found["running"][:3])
        raise AssertionError(f"stopped after {seconds:g} s with {found['ended']} tests ended; running: {running}")
    if found["failed"]:
        raise AssertionError(f"{len(found['failed'])} of {found['ended']} tests failed")
    if tests.returncode not in (0, NO_TESTS):
        ended = f"{found['ended']} of {found['collected']} tests"
        raise RuntimeError(f"pytest ended with {tests.returncode} after {ended}: {said[-1000:]}")
    if not found["tests_passed"] and not found["skipped"]:
        raise RuntimeError(f"there are no tests; pytest ended with {tests.returncode}: {said[-1000:]}")


def _command(files, log):
    processes = max(1, (os.cpu_count() or 1) - NOT_FOR_TESTS)
    options = ["-q", "-n", f"{processes}", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    return [
        sys.executable,
        "-m",
        "pytest",
        *options,
        "-p",
        "tests.gpu.pytest_log",
        f"--log-tests={log}",
        *map(str, files),
    ]


def results(log):
    """Return what the log of `tests.gpu.pytest_log` says so far; its last line may be incomplete."""
    failed, skipped, started, ended = {}, {}, {}, set()
    count = 0
    for line in log.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        test = event["test"]
        if event["event"] == "collected":
            count = max(count, event["count"])
        elif event["event"] == "started":
            started[test] = None
        elif event["event"] == "failed":
            failed[test] = event["text"]
            ended.add(test)
        elif event["event"] == "skipped":
            skipped[test] = event["text"]
        else:
            ended.add(test)
    reasons = collections.Counter(skipped.values())
    return {
        "tests_passed": len(ended - failed.keys() - skipped.keys()),
        "failed": failed,
        "skipped": dict(reasons),
        "ended": len(ended),
        "collected": count,
        "running": [test for test in started if test not in ended],
    }


def _last_line(text):
    """Return the last line of a failure that says what is wrong."""
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return (lines or text.splitlines() or [""])[0][:160]
