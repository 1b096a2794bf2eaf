"""Command lines that a user can repeat, and the folders that they need not name."""

import shlex
from pathlib import Path

DATA_DIR = Path("data")
RUNS_DIR = Path("runs")


def command_line(*words: str, data_dir: Path = DATA_DIR, runs_dir: Path = RUNS_DIR) -> str:
    """Return a command line of txl, with --data-dir and --runs-dir where they are not the default folders."""
    data = [] if data_dir == DATA_DIR else ["--data-dir", str(data_dir)]
    runs = [] if runs_dir == RUNS_DIR else ["--runs-dir", str(runs_dir)]
    return shlex.join(["txl", *words, *data, *runs])
