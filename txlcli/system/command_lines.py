"""Command lines that a user can repeat, and the directories that they need not name."""

import os
import shlex
from pathlib import Path

DATA_DIR = Path("data")
RUNS_DIR = Path("runs")
DATA_VARIABLE, RUNS_VARIABLE = "TXL_DATA_DIR", "TXL_RUNS_DIR"
"""Environment variables that replace the default directories."""


def user_path(text: str) -> Path:
    """Return the path of a text in which ~ is the home folder; shells leave it in variables and after "="."""
    return Path(os.path.expanduser(text))


def default_data_dir() -> Path:
    """Return the directory of the token stores that a command uses without --data-dir."""
    return user_path(os.environ.get(DATA_VARIABLE) or str(DATA_DIR))


def default_runs_dir() -> Path:
    """Return the directory of the runs that a command uses without --runs-dir."""
    return user_path(os.environ.get(RUNS_VARIABLE) or str(RUNS_DIR))


def command_line(*words: str, data_dir: Path | None = None, runs_dir: Path | None = None) -> str:
    """Return a command line of txl, with --data-dir and --runs-dir where they are not the default directories."""
    data = [] if data_dir in (None, default_data_dir()) else ["--data-dir", str(data_dir)]
    runs = [] if runs_dir in (None, default_runs_dir()) else ["--runs-dir", str(runs_dir)]
    return shlex.join(["txl", *words, *data, *runs])
