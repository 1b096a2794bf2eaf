"""Run the command line, as `txl` or as `python -m txlcli`."""

import io
import logging
import os
import signal
import sys
import warnings

from txlcli.system import signals


def _keep_children_from_working_directory() -> None:
    """Let child processes import nothing from the working directory, unless this process does, too.

    Python would search it first for workers and ranks, which start with `-c` or `-m`, and execute a file there that has
    the name of any module.
    """
    try:
        directory = os.getcwd()
    except OSError:  # it was deleted
        directory = ""
    if not {"", os.curdir, directory} & set(sys.path):
        os.environ["PYTHONSAFEPATH"] = "1"


def _open_closed_streams() -> None:
    """Open the null device in place of each standard stream that was closed before (`txl ... >&-`).

    Otherwise the next file that is opened would take its number, and a library might write into that file. stdout
    cannot be written, so that a command whose result is lost says so and fails.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, flags)  # takes the lowest free number, which is this one
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="surrogateescape")  # of other bytes than UTF-8, as Python reads a command line
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # "?" for symbols that its encoding lacks
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)


def main() -> None:
    """Run the command line; a signal ends it with one line even while modules are imported."""
    for number in signals.handled():
        signal.signal(number, signals.end)
    _open_closed_streams()
    _keep_children_from_working_directory()
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # it reports where it keeps its own files
    os.environ["MPLBACKEND"] = "agg"  # figures are only written to files; matplotlib does not load with a wrong value
    try:
        from txlcli import console
        from txlcli.cli import app

        warnings.showwarning = lambda message, *_: console.warn(" ".join(str(message).split()))
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signals.ignore()


if __name__ == "__main__":
    main()
