"""Says beforehand where no file can go."""

import os
from pathlib import Path

from txlcli.errors import UsageError


def check_folder(path: Path, asked: str) -> None:
    """Refuse a place that no file can go to, before anything is computed for it.

    Args:
        path: of the file, which need not exist.
        asked: what the user gave, for the error.

    Raises:
        UsageError: there is no such folder, or it cannot be written.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{asked}: there is no folder {path.parent}; make it first")
    if not os.access(path.parent, os.W_OK):
        raise UsageError(f"{asked}: the folder {path.parent} cannot be written; name another")
