"""Flags of the commands: those that several commands share, and those built from the options of a job."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import Field
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from txlcli import console
from txlcli.commands.completion import names_of
from txlcli.commands.progress import TerminalReporter
from txlcli.config.ranges import FieldType
from txlcli.runs import run_directory
from txlcli.system import launcher
from txlcli.system.command_lines import flag
from txlcli.workflows.options import Options, OptionTraits, parse
from txlcli.workflows.workspace import RunsDir, Workspace

Run = Annotated[
    str | None,
    Argument(
        metavar="RUN", help="Name or folder of a run [default: the most recent].", autocompletion=names_of("runs")
    ),
]
Runs = Annotated[
    list[str] | None, Argument(metavar="RUN...", help="Runs, by name or folder.", autocompletion=names_of("runs"))
]
Json = Annotated[bool, Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print results and errors only.")]

LETTERS = {int: "N", float: "X", Path: "<path>"}
"""Placeholder of a value in the help."""
COMPLETIONS: dict[str, Callable[..., list[str]]] = {
    "overrides": names_of("settings"),
    "recipe": names_of("recipes"),
    "store": names_of("stores"),
    "resume": names_of("runs"),
    "begin_from": names_of("runs"),
}
"""Names that a shell completes for a field of the options."""


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Replace each parameter of a command that is a class of options by one flag for each of them, and add --quiet.

    The command receives the object, a workspace with the terminal as its reporter; interrupted runs are recovered
    before it begins.
    """
    hints = get_type_hints(command, include_extras=True)
    classes = {name: cls for name, cls in hints.items() if isinstance(cls, type) and issubclass(cls, Options)}
    parameters = [inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)]
    for name, parameter in reversed([*inspect.signature(command).parameters.items()]):
        if cls := classes.get(name):
            parameters = [*map(_parameter, cls.declared()), *parameters]
        else:
            parameters.insert(0, parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(*, quiet: bool = False, **values: Any) -> None:
        console.set_quiet(quiet)
        for name, cls in classes.items():
            given: dict[str, Any] = {}
            for field in cls.declared():
                if (value := values.pop(field.name)) is not None:
                    given[field.name] = parse(field, value) if isinstance(value, str) else value
            if issubclass(cls, Workspace):
                given["reporter"] = TerminalReporter(bars=not values.get("json"))
            values[name] = cls(**given)
            if issubclass(cls, RunsDir) and launcher.is_main():
                run_directory.recover(values[name].runs_dir, console.say)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(field: Field[Any]) -> inspect.Parameter:
    """Return the Typer parameter of an option: a switch, a choice, a repeated text, or else a text that is parsed."""
    traits: OptionTraits = field.metadata["option"]
    type_ = FieldType.of(field.type)
    hint: Any = str | None
    default: Any = None if traits.read or type_.is_list or field.default is None else str(field.default)
    if type_.item is bool or (type_.words and type_.item is str):
        hint, default = field.type, field.default
    elif type_.is_list and type_.item is str and not traits.read:
        hint = list[str] | None
    option = Option(
        *(() if type_.item is bool and type_.can_be_off else (flag(field.name),)),  # Typer adds --no-NAME
        metavar=traits.metavar or _metavar(type_),
        envvar=traits.variable,
        autocompletion=COMPLETIONS.get(field.name),
        help=traits.help,
    )
    hint = Annotated[hint, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _metavar(type_: FieldType) -> str | None:
    """Return what stands for a value in the help, None for words."""
    if (letter := LETTERS.get(type_.item)) is None:
        return None
    return "|".join([f"{letter},{letter},..." if type_.is_list else letter, *type_.words])
