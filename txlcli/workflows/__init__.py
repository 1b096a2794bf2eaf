"""What a command does, as plain Python: no Typer, no printing."""
