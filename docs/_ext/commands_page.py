"""Markdown of the commands: usage, description, arguments and options, from the Typer app."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from txlcli.cli import app, help_record

WITHOUT_HELP = "no help text"


def lines() -> Iterator[str]:
    """Yield the Markdown of all commands and their subcommands.

    Raises:
        LookupError: a command, argument or option has no text.
    """
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    yield "| command | what it does |\n| --- | --- |"
    for name, command in commands.items():
        yield f"| [`txl {name}`](#txl-{name}) | {_escaped(command.get_short_help_str(200))} |"
    yield ""
    for name, command in commands.items():
        yield from describe(f"txl {name}", command, level=2)
        for inner, subcommand in getattr(command, "commands", {}).items():
            yield from describe(f"txl {name} {inner}", subcommand, level=3)


def describe(path: str, command: Any, *, level: int) -> Iterator[str]:
    """Yield the Markdown of one command.

    Raises:
        LookupError: the command, an argument or an option has no text.
    """
    if not command.help:
        raise LookupError(f"{path} has {WITHOUT_HELP}")
    context = command.context_class(command, info_name=path)
    yield f"{'#' * level} {path}\n"
    description, _, example = command.help.partition("Example: ")
    usage = f"{path} {' '.join(command.collect_usage_pieces(context))}"
    yield _escaped(description.strip()) + "\n"
    yield f"```text\n{usage}\n```\n"
    if example:
        yield f"Example:\n\n```sh\n{example.strip()}\n```\n"
    for parameter in command.params:
        record = help_record(parameter, context)
        if record is None:
            continue
        if not parameter.help:
            raise LookupError(f"{path}: {parameter.opts[0]} has {WITHOUT_HELP}")
        name, text = record
        yield f"`{name}`\n: {_escaped(' '.join(text.split()))}\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]*_<>|])", r"\\\1", text)
