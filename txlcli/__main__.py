"""Run the command line as `python -m txlcli`."""

from txlcli.cli import app

if __name__ == "__main__":
    app(prog_name="txl")
