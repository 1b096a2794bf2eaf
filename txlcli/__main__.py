"""Run the command line, as `txl` or as `python -m txlcli`."""

import signal
import sys


def main() -> None:
    """Run it; Ctrl-C ends it in one line even while it loads."""
    try:
        from txlcli import console
        from txlcli.cli import app

        console.replace_missing_symbols()
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done; libraries clear away


if __name__ == "__main__":
    main()
