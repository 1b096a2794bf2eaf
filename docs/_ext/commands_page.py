"""Markdown of the commands: usage, description, arguments and options, from the Typer app."""

import re
from collections.abc import Iterator
from typing import Any

import typer.main

from txlcli.cli import app

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
        record = None if parameter.hidden else parameter.get_help_record(context)
        if parameter.hidden:
            continue
        if not (record and parameter.help):
            raise LookupError(f"{path}: {parameter.opts[0]} has {WITHOUT_HELP}")
        yield f"`{_plain(record[0])}`\n: {_escaped(_with_range(record[1]))}\n"


def _plain(name: str) -> str:
    """Return an argument without its type, which Typer adds, and an option without brackets: `--device auto|cpu`."""
    if not name.startswith("-"):
        return re.sub(r" <.*>$", "", name)
    return re.sub(r"<(.*)>", r"\1", name)


def _with_range(text: str) -> str:
    """Return a help text without limits that nobody reaches, and with the others in words."""
    text = re.sub(r"\[?(0<=)?x<=\d{10,}\]?", "", text)
    text = re.sub(r"; x>=([\d.]+)\]", r"; at least \1]", text)
    text = re.sub(r"\[x>=([\d.]+)\]", r"[at least \1]", text)
    return re.sub(r"; ?$", "]", " ".join(text.split())).replace(".0]", "]")


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]*_<>|])", r"\\\1", text)
