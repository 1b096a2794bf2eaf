"""Base class of the options of a job: the Python interface takes them, and `commands` builds flags and help from them.

A job declares each option once, in a module next to it: `training/options.py`, `speed_options.py`. Modules of options
import neither PyTorch nor Typer, so that `txl COMMAND --help` stays fast. Where a job reports an option,
it writes the name of the field in backticks, `mem_len`, and the command line prints the flag, --mem-len.
"""

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import Field, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, dataclass_transform

from txlcli.config.ranges import FieldType, as_plain, check_names
from txlcli.config.settings import PLAIN_NAME
from txlcli.corpora.documents import UNITS
from txlcli.errors import UnknownNameError, UsageError
from txlcli.system.atomic_files import check_output
from txlcli.system.written_files import MARK, check_replaceable

Split = Literal["train", "valid", "test"]
FIGURE_FORMATS = (".png", ".svg", ".pdf")
LOSS_FORMATS = (".h5", ".hdf5")


@dataclass(frozen=True, kw_only=True)
class OptionTraits:
    """How the command line shows and reads a field of an options class."""

    help: str
    metavar: str | None = None
    variable: str | None = None
    """Environment variable with another default."""
    read: Callable[[str], Any] | None = None
    """Converts the text of the command line, or raises a ValueError; by default, the type of the field does."""
    read_each: Callable[[str], Any] | None = None
    """Converts each text of an option that the command line takes several times."""
    example: str = ""
    """Texts that `read` accepts."""
    writes: tuple[str, ...] = ()
    """Extensions of a file that the job writes, and replaces with `force` only."""
    signature: str = MARK
    """Text by which such a file is known to be one of txl."""


def option(help_: str, *, default: Any = None, **traits: Any) -> Any:
    """Return the dataclass field of an option; `traits` are those of OptionTraits."""
    return field(default=default, metadata={"option": OptionTraits(help=help_, **traits)})


def parse(of: Field[Any], text: str) -> Any:
    """Return the value of an option from a text of the command line."""
    traits: OptionTraits = of.metadata["option"]
    type_ = FieldType.of(of.type)
    read = traits.read or type_.parse
    try:
        return read(text)
    except ValueError:
        raise UsageError(f"`{of.name}` {text}: write {traits.example or type_.example}") from None


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of a job: checks the names, types and ranges of all fields when it is made.

    Its subclasses are frozen dataclasses, too.
    """

    def __init_subclass__(cls) -> None:
        dataclass(frozen=True, kw_only=True)(cls)

    def __new__(cls, *_: object, **named: object) -> Self:
        check_names(cls.__name__, named, [item.name for item in fields(cls)])
        return super().__new__(cls)

    def __post_init__(self) -> None:
        for item in self.declared():
            value = as_plain(getattr(self, item.name))
            object.__setattr__(self, item.name, value)
            self._check_value(item, value)
        self._check()

    def _check_value(self, item: Field[Any], value: Any) -> None:
        """Reject a value of another type or out of range, an empty list, a file in the way, and a name that is none."""
        FieldType.of(item.type).check(f"`{item.name}`", value)
        if value == () and item.default != ():
            raise UsageError(f"`{item.name}` is empty; give at least one number, or leave it out")
        traits: OptionTraits = item.metadata["option"]
        if value and traits.writes:
            self._check_output(item.name, value, traits)
        if item.name == "name" and value is not None and not re.fullmatch(PLAIN_NAME, value):
            raise UsageError(f'`name` "{value}" is not a plain name; use letters, digits, ".", "-" and "_"')

    def _check_output(self, name: str, path: Path, traits: OptionTraits) -> None:
        """Reject a file that cannot be written, or that exists unless it is to be replaced."""
        if path.suffix.lower() not in traits.writes:
            raise UsageError(f"`{name}` {path}: use the extension {' or '.join(traits.writes)}")
        check_output(path, f"`{name}` {path}")
        if os.path.lexists(path) and "force" not in self.changed():
            raise UsageError(f"`{name}` {path} exists; name another file, or add `force` to replace it")
        if path.suffix.lower() not in LOSS_FORMATS:  # which their reader recognizes
            check_replaceable(path, traits.signature)

    def _check(self) -> None:
        """Reject combinations of options; subclasses define it.

        A subclass says with `exclude` which options do not apply together with others.
        """

    @classmethod
    def declared(cls) -> list[Field[Any]]:
        """Return the options, inherited ones last; other fields belong to the Python interface alone."""
        options = [item for item in fields(cls) if "option" in item.metadata]
        return sorted(options, key=lambda item: item.name not in cls.__annotations__)

    def changed(self) -> dict[str, Any]:
        """Return the values of the options that differ from their defaults, by field."""
        values = {}
        for item in self.declared():
            value = getattr(self, item.name)
            if value != item.default:
                values[item.name] = value
        return values

    def given(self, *names: str) -> list[str]:
        """Return those of the named fields that differ from their defaults, as backticked names for a message."""
        return [f"`{name}`" for name in names if getattr(self, name) != getattr(type(self), name)]

    def exclude(self, *names: str, because: str) -> None:
        """Reject the named options, which do not apply for the reason `because`."""
        given = self.given(*names)
        if given:
            raise UsageError(f"{because}; leave out {given[0]}")


def check_given_once(changes: Iterable[str]) -> None:
    """Reject changes of settings of which two are of one setting: a recipe takes the last value."""
    names = set()
    for change in changes:
        name = change.partition("=")[0].strip()
        if name in names:
            raise UsageError(f"{name} is given twice, and takes one value; leave out one of them")
        names.add(name)


def check_documents(unit: str | None) -> None:
    """Reject a word that names no unit of documents; a mark that ends documents has other characters."""
    if unit is not None and unit not in UNITS and re.fullmatch(r"[\w-]*", unit):
        raise UnknownNameError("unit of documents", unit, UNITS)


def check_encoding(name: str | None) -> None:
    """Reject an encoding that Python does not know."""
    try:
        "".encode(name or "utf-8")
    except (LookupError, ValueError):
        raise UsageError(f'`encoding` "{name}" is not known; give one of Python, such as cp1252') from None


column_option = partial(
    option,
    "Column or key of rows with the text, or its number in a CSV without a header [default: text, or the only one].",
)
encoding_option = partial(option, "Encoding of the text, such as utf-16 or cp1252 [default: UTF-8].")
attention_option = partial(option, "Attention backend; all compute the same function.")
compile_option = partial(
    option, "Fuse the operations of layers with torch.compile; auto does so on a GPU if faster overall."
)
flag_option = partial(option, default=False)
force_option = partial(flag_option, "Overwrite existing results.")
memory_option = partial(option, "Memory length M [default: the recipe's].")
overrides_option = partial(
    option, "Override a setting of the recipe; repeatable.", default=(), metavar="SECTION.KEY=VALUE"
)
seeds_option = partial(option, "Training runs per model, each with the next seed.", default=1)
seed_option = partial(option, "Random seed.", default=1111)


class PlotOptions(Options):
    """Options of each job that plots its result, and all of `txl runs plot` and `txl runs compare`."""

    plot: Path | None = option("Plot the result to this .png, .svg or .pdf file.", writes=FIGURE_FORMATS)
    force: bool = force_option()
