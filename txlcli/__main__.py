"""Run the command line, as `txl` or as `python -m txlcli`."""

import os
import signal
import sys
from types import FrameType

from txlcli.system import torchrun


def _terminate(number: int, frame: FrameType | None) -> None:
    """End the process at once: nothing has been started that must be cleaned up."""
    if torchrun.is_main():  # which ends the others itself
        os.write(2, b"error: terminated\n")
    os._exit(128 + number)


def main() -> None:
    """Run the command line; Ctrl-C and SIGTERM end it with one line even while modules are imported."""
    signal.signal(signal.SIGTERM, _terminate)
    try:
        from txlcli import console
        from txlcli.cli import app

        console.replace_missing_symbols()
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # only the cleanup of libraries is left


if __name__ == "__main__":
    main()
