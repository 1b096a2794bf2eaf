"""Opens standard streams that were closed before the command began (`txl ... >&-`).

Otherwise the next file that is opened would take the number of the stream, and a library that writes to that number
would write into the file.
"""

import os
import sys

FLAGS = (os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)
"""Of stdin, stdout and stderr. stdout cannot be written, so that a command whose result is lost says so and fails."""


def open_closed() -> None:
    """Open the null device in place of each closed stream."""
    for number, flags in enumerate(FLAGS):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
