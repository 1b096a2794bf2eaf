"""Keeps child processes from importing modules that lie in the working folder."""

import os
import sys

SAFE_PATH = "PYTHONSAFEPATH"


def without_working_folder() -> None:
    """Let Python's child processes import nothing from the working folder, unless this process does, too.

    Python would search that folder first in processes that it starts with `-c` or `-m`, as workers and the processes
    of a training are, and would execute a file of the name of any module.
    """
    if not {"", os.curdir, _working_folder()} & set(sys.path):
        os.environ[SAFE_PATH] = "1"


def _working_folder() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted
        return None
