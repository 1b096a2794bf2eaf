"""Flags of the commands: those that several commands share, and those built from the options of a job."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_type_hints

from typer import Argument, Option

from txlcli import console
from txlcli.commands.completion import names_of
from txlcli.config.ranges import FieldType
from txlcli.config.settings import Precision as PrecisionName
from txlcli.system import command_lines
from txlcli.system.command_lines import flag
from txlcli.workflows.options import Options, OptionTraits, parse

if TYPE_CHECKING:
    from txlcli.workflows.workspace import Workspace

DATA_DIR, RUNS_DIR = command_lines.DATA_DIR, command_lines.RUNS_DIR

Run = Annotated[
    str | None,
    Argument(
        metavar="RUN", help="Name or folder of a run [default: the most recent].", autocompletion=names_of("runs")
    ),
]
Runs = Annotated[
    list[str] | None, Argument(metavar="RUN...", help="Runs, by name or folder.", autocompletion=names_of("runs"))
]
_folder = partial(Option, parser=command_lines.user_path, metavar="PATH")
DataDir = Annotated[Path, _folder("--data-dir", envvar=command_lines.DATA_VARIABLE, help="Folder of the token stores.")]
RunsDir = Annotated[
    Path, _folder("--runs-dir", envvar=command_lines.RUNS_VARIABLE, help="Folder of the training runs.")
]
Json = Annotated[bool, Option("--json", help="Print the result as JSON on stdout.")]
Verbose = Annotated[bool, Option("--verbose", "-v", help="Print all notes under a table.")]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mps"], Option("--device", help="Device; auto uses CUDA if available.")
]
Precision = Annotated[
    PrecisionName | None, Option("--precision", help="Precision of matrix products [default: as trained].")
]
Threads = Annotated[
    int | None, Option("--threads", min=1, help="Threads on the CPU [default: OMP_NUM_THREADS, or one per core].")
]
Force = Annotated[bool, Option("--force", help="Overwrite existing results.")]


@dataclass(frozen=True, kw_only=True)
class Directories:
    """Flags for the directories of stores and runs; `with_options` builds them from the fields."""

    data_dir: DataDir = DATA_DIR
    runs_dir: RunsDir = RUNS_DIR

    def workspace(self, *, json: bool) -> "Workspace":
        """Return the workspace, which shows no bars next to JSON. Imports PyTorch."""
        from txlcli.workflows.workspace import Workspace

        return Workspace(**vars(self), reporter=console.TerminalReporter(bars=not json))


@dataclass(frozen=True, kw_only=True)
class Place(Directories):
    """Flags for the device and the directories of stores and runs."""

    device: Device = "auto"
    threads: Threads = None


@dataclass(frozen=True, kw_only=True)
class Where(Place):
    """Flags for the device, the precision and the directories of stores and runs."""

    precision: Precision = None


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
    """Replace each parameter of a command that is a class of options or flags by one flag for each of its fields.

    The command receives the object. Fields of options without traits belong to the Python interface alone.
    """
    hints = get_type_hints(command, include_extras=True)
    classes = {
        name: cls for name, cls in hints.items() if isinstance(cls, type) and issubclass(cls, Options | Directories)
    }
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        if cls := classes.get(name):
            of_fields = get_type_hints(cls, include_extras=True)
            parameters += [_parameter(field, of_fields[field.name]) for field in _fields_with_flags(cls)]
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY))

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, cls in classes.items():
            given = {field.name: _parse(field, values.pop(field.name)) for field in _fields_with_flags(cls)}
            values[name] = cls(**{field: value for field, value in given.items() if value is not None})
        command(**values)

    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _fields_with_flags(cls: type[Options | Directories]) -> Sequence[dataclasses.Field[Any]]:
    if issubclass(cls, Options):
        return cls.declared()
    return sorted(dataclasses.fields(cls), key=lambda field: field.name in Directories.__annotations__)


def _parameter(field: dataclasses.Field[Any], hint: Any) -> inspect.Parameter:
    """Return the Typer parameter of a field; the hint of a shared flag has the Typer option already.

    Ranges are left to the class of the options.
    """
    default: Any = field.default
    traits: OptionTraits | None = field.metadata.get("option")
    if traits is not None:
        type_ = FieldType.of(field.type)
        if _is_parsed(field):
            hint, default = str | None, None
        elif type_.is_list:
            hint, default = list[type_.item] | None, None  # type: ignore[name-defined]
        elif not type_.words:
            hint = type_.item | None if type_.can_be_off else type_.item
        option = Option(
            *(traits.flags or ((flag(field.name),) if type_.item is bool else ())),
            metavar=traits.metavar or _metavar(type_),
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
    return parse(field, value) if isinstance(value, str) and "option" in field.metadata and _is_parsed(field) else value


def _metavar(type_: FieldType) -> str | None:
    """Return what stands for a number in the help, None for other values."""
    if (letter := LETTERS.get(type_.item)) is None:
        return None
    return "|".join([f"{letter},{letter},..." if type_.is_list else letter, *type_.words])
