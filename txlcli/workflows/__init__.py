"""The work of each command as plain Python: no Typer, no printing."""
