"""Flags of the commands: those that several commands share, and those built from the options of a job."""

from collections.abc import Callable
from dataclasses import Field
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

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
    before it begins, and the run that `run_name` selects is there.
    """
    classes: dict[str, type[Options]] = {}
    parameters: list[Parameter] = []
    for name, parameter in signature(command).parameters.items():
        cls = parameter.annotation
        if isinstance(cls, type) and issubclass(cls, Options):
            classes[name] = cls
            parameters += map(_parameter, cls.declared())
        else:
            parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
    parameters.append(Parameter("quiet", Parameter.KEYWORD_ONLY, default=False, annotation=Quiet))

    @wraps(command)
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
                if "run_name" in values:  # a wrong name is reported before PyTorch is imported
                    run_directory.find(values["run_name"], values[name].runs_dir)
        command(**values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _parameter(field: Field[Any]) -> Parameter:
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
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def _metavar(type_: FieldType) -> str | None:
    """Return what stands for a value in the help, None for words."""
    if (letter := LETTERS.get(type_.item)) is None:
        return None
    return "|".join([f"{letter},{letter},..." if type_.is_list else letter, *type_.words])
