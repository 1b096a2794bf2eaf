"""Run the command line, as `txl` or as `python -m txlcli`."""

import signal
import sys


def main() -> None:
    """Run the command line; Ctrl-C ends it with one line even while modules are imported."""
    try:
        from txlcli import console
        from txlcli.cli import app

        console.replace_missing_symbols()
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # only the cleanup of libraries is left


if __name__ == "__main__":
    main()
