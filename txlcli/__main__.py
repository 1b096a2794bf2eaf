"""Run the command line, as `txl` or as `python -m txlcli`."""

import os
import signal
import sys
from types import FrameType

from txlcli.system import signals, standard_streams


def _end(number: int, frame: FrameType | None) -> None:
    """End the process at once: nothing has been started that must be cleaned up."""
    if _is_rank_0():  # which ends the others itself
        os.write(2, f"error: {signals.WORDS[number]}\n".encode())
    os._exit(128 + number)


def _is_rank_0() -> bool:
    try:
        from txlcli.system import launcher  # here, since the handlers are installed before anything else is imported

        return launcher.is_main()
    except Exception:  # the module is just being imported, or cannot be
        return True


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


def main() -> None:
    """Run the command line; a signal ends it with one line even while modules are imported."""
    for number in signals.handled():
        signal.signal(number, _end)
    standard_streams.open_closed()
    _keep_children_from_working_directory()
    os.environ["MPLBACKEND"] = "agg"  # figures are only written to files; matplotlib does not load with a wrong value
    try:
        from txlcli import console
        from txlcli.cli import app

        console.replace_missing_symbols()
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signals.ignore()


if __name__ == "__main__":
    main()
