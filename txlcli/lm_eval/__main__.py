"""Runs `python -m txlcli.lm_eval`."""

from txlcli.lm_eval import main

main()
