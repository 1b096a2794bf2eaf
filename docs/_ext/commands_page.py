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
    for name, command in typer.main.get_command(app).commands.items():  # type: ignore[attr-defined]
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
    yield _escaped(description.strip()) + "\n"
    if example:
        yield f"```sh\n{example.strip()}\n```\n"
    usage = " ".join(command.collect_usage_pieces(context))
    yield f"```text\nUsage: {path} {usage}\n```\n"
    for parameter in command.params:
        record = None if parameter.hidden else parameter.get_help_record(context)
        if parameter.hidden:
            continue
        if not (record and parameter.help):
            raise LookupError(f"{path}: {parameter.opts[0]} has {WITHOUT_HELP}")
        yield f"`{_plain(record[0])}`\n: {_escaped(_with_range(record[1]))}\n"


def _plain(name: str) -> str:
    """Return an option's name and value without the parser's own words: `<int range>` -> `N`."""
    for parsers, ours in ((r"<int( range)?>", "N"), (r"<float( range)?>", "X"), (r"<path>", "PATH")):
        name = re.sub(parsers, ours, name)
    return re.sub(r" ?<(list\[)?str\]?>", "", name) if not name.startswith("-") else name.replace("<str>", "TEXT")


def _with_range(text: str) -> str:
    """Return a help text with the range of its number in words."""
    text = re.sub(r"(\[default: [^\]]*); x>=([\d.]+)\]", r"\1] [at least \2]", text)
    text = re.sub(r"\[x>=([\d.]+)\]", r"[at least \1]", text)
    text = re.sub(r"(\d+)<=x<=(\d+)", r"\1 to \2", re.sub(r"\[x<=(\d+)\]", r"[at most \1]", text))
    return " ".join(text.split())


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]*_<>|])", r"\\\1", text)
