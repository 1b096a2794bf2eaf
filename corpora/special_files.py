"""Rejects pipes, sockets and devices: opening or reading them may never end."""

import stat
from pathlib import Path

from .corpus import CorpusError

KINDS = ((stat.S_ISFIFO, "pipe"), (stat.S_ISSOCK, "socket"), (stat.S_ISCHR, "device"), (stat.S_ISBLK, "device"))


def reject_special(path: Path) -> Path:
    """Return a path that is not a special file; a missing path and a directory are left to the reader of the path."""
    kind = special_kind(path)
    if kind is not None:
        raise CorpusError(f"{path} is a {kind}, not a regular file; save its content to a file and name that")
    return path


def special_kind(path: Path) -> str | None:
    """Return "pipe", "socket" or "device" if a path is, or links to, one; None for all others."""
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError):
        return None
    return next((kind for is_kind, kind in KINDS if is_kind(mode)), None)
