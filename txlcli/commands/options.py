"""Arguments and flags of the commands: those built from the options of a job, and the names that a shell completes."""

import itertools
from collections.abc import Callable, Iterable
from dataclasses import Field
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Context, Option

from txlcli import console, corpora
from txlcli.commands.progress import TerminalReporter
from txlcli.config import recipe
from txlcli.config.ranges import FieldType
from txlcli.errors import UsageError
from txlcli.runs import lifecycle, run_directory
from txlcli.system import launcher
from txlcli.system.command_lines import default_data_dir, default_runs_dir, flag, with_flags
from txlcli.workflows.options import Options, OptionTraits, parse
from txlcli.workflows.reproduction.options import ALL_ITEMS, REPRODUCIBLE
from txlcli.workflows.workspace import RunsDir, Workspace


def _run_names(context: Context) -> list[str]:
    """Return the names of the runs in the chosen directory."""
    return run_directory.names(Path(context.params.get("runs_dir") or default_runs_dir()))


def _store_names(context: Context) -> list[str]:
    """Return the names of the token stores in the chosen directory."""
    directory = Path(context.params.get("data_dir") or default_data_dir())
    return sorted(path.stem for path in directory.glob("*.h5"))


NAMES: dict[str, Callable[[Context], Iterable[str]]] = {
    "runs": _run_names,
    "recipes": lambda _: recipe.packaged_names(),
    "stores": _store_names,
    "corpora": lambda _: corpora.CORPORA,
    "settings": lambda _: [f"{name}=" for name in recipe.setting_names()],
    "items": lambda _: [*REPRODUCIBLE, ALL_ITEMS],
}
"""Names that a shell can complete, by their kind."""


def names_of(*kinds: str) -> Callable[[Context, str], list[str]]:
    """Return a completion with the names of these kinds."""

    def complete(context: Context, incomplete: str) -> list[str]:
        names = itertools.chain.from_iterable(NAMES[kind](context) for kind in kinds)
        return [name for name in dict.fromkeys(names) if name.startswith(incomplete)]

    return complete


def argument(metavar: str, help_: str, *kinds: str) -> Any:
    """Return an argument of a command; a shell completes the names of these kinds."""
    return Argument(metavar=metavar, help=help_, autocompletion=names_of(*kinds))


RunName = Annotated[
    str | None,
    argument("RUN", "Name or folder of a run [default: the most recent].", "runs"),
]
ScoredModel = Annotated[
    str | None,
    argument(
        "MODEL",
        "Name or folder of a run, hf:FOLDER with a model of Transformers, or a .gguf file [default: most recent run].",
        "runs",
    ),
]
RunNames = Annotated[list[str] | None, argument("RUN...", "Runs, by name or folder.", "runs")]
Json = Annotated[bool, Option("--json", help="Print the result as JSON on stdout.")]
Quiet = Annotated[bool, Option("--quiet", "-q", help="Print results and errors only.")]

LETTERS = {int: "N", float: "X", str: "TEXT", Path: "PATH"}
"""How the help writes a value of a type."""
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
            given = _pop_options(cls, values)
            if issubclass(cls, Workspace):
                given["reporter"] = TerminalReporter(bars=not values.get("json"))
            options = cls(**given)
            if isinstance(options, Workspace):
                options.use_threads()
            values[name] = options
            if isinstance(options, RunsDir) and launcher.is_main():
                lifecycle.recover(options.runs_dir, console.say)
        command(**values)

    run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _pop_options(cls: type[Options], values: dict[str, Any]) -> dict[str, Any]:
    """Remove the options of a class from the values of the command line; return the given ones, parsed."""
    given = {}
    for field in cls.declared():
        value = values.pop(field.name)
        traits: OptionTraits = field.metadata["option"]
        if isinstance(value, str):
            value = parse(field, value)
        elif value and traits.read_each:
            value = tuple(map(traits.read_each, value))
        if value is not None:
            given[field.name] = value
    return given


def _parameter(field: Field[Any]) -> Parameter:
    """Return the Typer parameter of an option: a switch, a choice, a repeated text, or else a text that is parsed."""
    traits: OptionTraits = field.metadata["option"]
    type_ = FieldType.of(field.type)
    hint: Any = str | None
    default = None
    if type_.item is bool or (type_.words and type_.item is str):
        hint = field.type
        default = field.default
    elif traits.read_each or (type_.is_list and type_.item is str and not traits.read):
        hint = list[str] | None
    elif not (traits.read or type_.is_list or field.default is None):
        default = str(field.default)
    flags = [flag(field.name)]
    if type_.item is bool and type_.can_be_off:
        flags = []  # Typer makes the flag, and --no-NAME
    option = Option(
        *flags,
        metavar=traits.metavar or _metavar(type_),
        envvar=traits.variable,
        autocompletion=COMPLETIONS.get(field.name),
        help=with_flags(traits.help),
    )
    return Parameter(field.name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[hint, option])


def _metavar(type_: FieldType) -> str | None:
    """Return how the help writes a value: N, N,N,...|auto, or cpu|cuda; None for a switch."""
    if type_.words and type_.item is str:
        return "|".join(type_.words)
    letter = LETTERS.get(type_.item)
    if letter is None:
        return None
    if type_.is_list:
        letter = f"{letter},{letter},..."
    return "|".join([letter, *type_.words])


def check_options_last(context: Context) -> None:
    """Reject options of a group of commands, such as `txl runs`, before the name of one of them: they would be lost."""
    for name in context.params:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            option = flag(name)
            command = f"{context.command_path} {context.invoked_subcommand}"
            raise UsageError(f"{option} must come last: {command} ... {option}")


def write_figure(path: Path | None, plot: Callable[[Path, Any], None], result: object) -> None:
    """Plot a result to the file that the user named, if any, and say so."""
    if path is not None:
        plot(path, result)
        console.say(f"figure written to {path}")
