"""Settings of all tests: one thread per worker, the same hypothesis examples on every machine, no GPU for commands."""

import os
import signal
from functools import cache
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported: the workers share the cores already

import typer.testing
from hypothesis import settings

typer.testing._get_command = cache(
    typer.testing._get_command
)  # else every command line takes 10 ms to build all commands
settings.register_profile("txl", deadline=None, derandomize=True, max_examples=40)
settings.load_profile("txl")

HERE = Path(__file__).parent
ON_GPUS = ("gpu", "core")
"""Directories of tests that can use a GPU. All other tests expect that "auto" is the CPU."""


SMOKE = (
    "commands/test_runs.py",
    "config/test_recipe.py",
    "core/model/test_attention.py",
    "core/training/test_resume.py",
    "data",
    "runs",
    "test_console.py",
    "test_reference.py",
)
"""Files and directories of the tests for a first look, `pytest -m smoke`: some of each package, within a minute."""


def is_smoke(path):
    """True for a file of `SMOKE`, or in one of its directories."""
    return any(path == HERE / part or path.is_relative_to(HERE / part) for part in SMOKE)


def pytest_ignore_collect(collection_path, config):
    """Read no other files for `pytest -m smoke`: importing all takes as long as these tests."""
    if config.option.markexpr == "smoke" and collection_path.is_file() and not is_smoke(collection_path):
        return True
    return None


def pytest_collection_modifyitems(items):
    """Mark the tests for a first look, but for slow cases."""
    for item in items:
        if is_smoke(item.path) and item.get_closest_marker("slow") is None:
            item.add_marker("smoke")


def hides_gpus(arguments):
    """True if some of pytest's arguments, paths or node ids, are of tests that expect a CPU."""
    paths = [Path(argument.split("::")[0]).resolve() for argument in arguments]
    return not all(any(path.is_relative_to(HERE / directory) for directory in ON_GPUS) for path in paths)


def pytest_configure(config):
    """Hide GPUs before torch looks for them, and let signals end commands; workers and commands inherit both."""
    # A shell ignores these signals for commands in the background, and nohup ignores SIGHUP; commands inherit that.
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    if hides_gpus(config.args):
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
