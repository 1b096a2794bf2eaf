"""Command lines that a user can repeat, the flag of each option, and the directories that need not be given."""

import os
import re
import shlex
from pathlib import Path

DATA_DIR = Path("data")
RUNS_DIR = Path("runs")
DATA_VARIABLE = "TXL_DATA_DIR"
RUNS_VARIABLE = "TXL_RUNS_DIR"
"""Environment variables that replace the default directories."""
FLAGS = {"overrides": "--set", "begin_from": "--from"}
"""Flags whose names are not those of the field."""
_OPTION = re.compile(r"(?<![\w/.\"'-])`([a-z_]+)`(?![\w/\"'-])")  # not within a name that the user gave


def flag(option: str) -> str:
    """Return the flag of an option on the command line: `mem_len` -> --mem-len."""
    return FLAGS.get(option, "--" + option.replace("_", "-"))


def with_flags(message: str) -> str:
    """Replace the options that a job reports by the flags of the command line: `mem_len` -> --mem-len."""
    return _OPTION.sub(lambda name: flag(name[1]), message)


def user_path(text: str) -> Path:
    """Return the path of a text in which ~ is the home folder; shells leave it in variables and after "="."""
    return Path(os.path.expanduser(text))


def default_data_dir() -> Path:
    """Return the directory of the token stores that a command uses by default."""
    return user_path(os.environ.get(DATA_VARIABLE) or str(DATA_DIR))


def default_runs_dir() -> Path:
    """Return the directory of the runs that a command uses by default."""
    return user_path(os.environ.get(RUNS_VARIABLE) or str(RUNS_DIR))


def command_line(*words: str, **options: object) -> str:
    """Return a command line of txl with options by field; None and default directories are left out."""
    defaults = {"data_dir": default_data_dir(), "runs_dir": default_runs_dir()}
    line = ["txl", *words]
    for name, value in options.items():
        if value is None or value == defaults.get(name):
            continue
        if isinstance(value, bool):
            line.append(flag(name) if value else flag(f"no_{name}"))
        elif name == "overrides" and isinstance(value, tuple):
            for change in value:
                line += [flag(name), change]
        elif isinstance(value, tuple):
            line += [flag(name), ",".join(map(str, value))]
        else:
            line += [flag(name), str(value)]
    return shlex.join(line)
