"""Run the command line, as `txl` or as `python -m txlcli`."""

import io
import signal
import sys


def main() -> None:
    """Run it; Ctrl-C ends it in one line even while it loads."""
    try:
        from txlcli.cli import app

        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(errors="replace")  # a terminal may lack symbols that a text has
        app(prog_name="txl")
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is said and done; libraries clear away


if __name__ == "__main__":
    main()
