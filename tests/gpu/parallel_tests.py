"""Runs files of tests in parallel processes; what has ended when the time is over counts."""

import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from contextlib import suppress

from tests.gpu.stage import Skip

NOT_FOR_TESTS = 3
"""Cores that the processes of the tests leave to others."""
NEEDED = ("pytest", "xdist", "hypothesis", "typer")
MAX_FAILURES = 6
"""Failed tests that are printed."""
ENDED = re.compile(r"^\[gw\d+\] \[ *\d+%\] (\w+) (\S+)", re.MULTILINE)
"""A line of pytest -v in several processes: how a test ended, and its name."""


def run(files, seconds, also=()):
    """Run files of tests, and yield their results.

    Args:
        files: of the tests.
        seconds: limit of all tests.
        also: commands that run at the same time; how they end does not matter.
    """
    missing = [module for module in NEEDED if importlib.util.find_spec(module) is None]
    if missing:
        raise Skip(f"{', '.join(missing)} cannot be imported")
    deadline = time.monotonic() + seconds
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    others = [subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL) for command in also]
    with tempfile.TemporaryFile("w+") as output:
        try:
            arguments = {"env": environment, "stdout": output, "stderr": output, "timeout": seconds}
            code = subprocess.run(_command(files), **arguments, check=False).returncode
        except subprocess.TimeoutExpired:  # the workers end with the process that is killed
            code = None
        output.seek(0)
        said = output.read()
    for other in others:
        with suppress(subprocess.TimeoutExpired):
            other.wait(max(0.0, deadline - time.monotonic()))
        other.kill()
    ended = ENDED.findall(said)
    passed = [test for result, test in ended if result == "PASSED"]
    failed = [test for result, test in ended if result in ("FAILED", "ERROR")]
    reasons = re.findall(r"^(?:FAILED|ERROR) .*", said, re.MULTILINE)
    yield {"tests_passed": len(passed), "failed": failed, "lines": (reasons or failed)[:MAX_FAILURES]}
    if code is None:
        raise AssertionError(f"stopped after {seconds:g} s with {len(ended)} tests ended")
    if reasons:
        raise AssertionError(f"{len(reasons)} failures in {len(ended)} tests")
    if code or not passed:
        raise RuntimeError(f"no test passed; pytest says: {said[-1000:]}")


def _command(files):
    processes = max(1, (os.cpu_count() or 1) - NOT_FOR_TESTS)
    options = ["-v", "-n", f"{processes}", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    return [sys.executable, "-m", "pytest", *options, *map(str, files)]
