"""Keeps child processes from importing modules that lie in the working directory."""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"


def without_working_directory() -> None:
    """Let Python's child processes import nothing from the working directory, unless this process does, too.

    Python would search that directory first in processes that it starts with `-c` or `-m`, as workers and the processes
    of a training are, and would execute a file of the name of any module.
    """
    if not {"", os.curdir, _working_directory()} & set(sys.path):
        os.environ[SAFE_PATH] = "1"


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None
