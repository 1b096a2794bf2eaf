"""Flags of the commands: those that several commands share, and those built from the options of a job."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Annotated, Any, get_type_hints

from typer import Argument, Option

from txlcli import console
from txlcli.commands.completion import names_of
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

LETTERS = {int: "N", float: "X"}
"""Placeholder of a number in the help."""
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
            given = {field.name: _parse(field, values.pop(field.name)) for field in cls.declared()}
            if issubclass(cls, Workspace):
                given["reporter"] = console.TerminalReporter(bars=not values.get("json"))
            values[name] = cls(**{field: value for field, value in given.items() if value is not None})
            if issubclass(cls, RunsDir) and launcher.is_main():
                run_directory.recover(values[name].runs_dir, console.say)
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(field: dataclasses.Field[Any]) -> inspect.Parameter:
    """Return the Typer parameter of an option; ranges are left to the class of the options."""
    traits: OptionTraits = field.metadata["option"]
    type_ = FieldType.of(field.type)
    hint: Any = field.type
    default = field.default
    if _is_parsed(field):
        hint, default = str | None, None
    elif type_.is_list:
        hint, default = list[type_.item] | None, None  # type: ignore[name-defined]
    elif not type_.words:
        hint = type_.item | None if type_.can_be_off else type_.item
    option = Option(
        *(traits.flags or ((flag(field.name),) if type_.item is bool else ())),
        metavar=traits.metavar or _metavar(type_),
        envvar=traits.variable,
        autocompletion=COMPLETIONS.get(field.name),
        help=traits.help,
    )
    hint = Annotated[hint, option]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hint)


def _is_parsed(field: dataclasses.Field[Any]) -> bool:
    """Return True if an option is a text for Typer: several numbers, a number or a word, or a file to read."""
    type_ = FieldType.of(field.type)
    return bool(field.metadata["option"].read or (type_.item in LETTERS and (type_.is_list or type_.words)))


def _parse(field: dataclasses.Field[Any], value: Any) -> Any:
    """Return the value of a field from what the command line has."""
    return parse(field, value) if isinstance(value, str) and _is_parsed(field) else value


def _metavar(type_: FieldType) -> str | None:
    """Return what stands for a number in the help, None for other values."""
    if (letter := LETTERS.get(type_.item)) is None:
        return None
    return "|".join([f"{letter},{letter},..." if type_.is_list else letter, *type_.words])
