"""The values that users give to settings, options and the Python interface: their types and ranges, by annotation."""

import dataclasses
import errno
import functools
import inspect
import math
import os
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, NoReturn, ParamSpec, TypeVar, Union, get_args, get_origin

from txlcli.errors import IMPORT_PACKAGE, RecipeError, UnknownKeyError, UnknownNameError, UsageError, shortened
from txlcli.suggestions import did_you_mean, meant_name

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
Made = TypeVar("Made")

MAX_COUNT = 2**31 - 1
"""Largest number of steps, tokens, layers or units; PyTorch does not accept larger numbers everywhere."""
OFF_WORDS = ("none", "off")
NAMES = {
    int: "whole number",
    float: "number",
    bool: "true or false",
    str: "text",
    dict: "table",
    Iterable: "list",
    os.PathLike: "path",
    Path: "path",
}
"""Names of types in messages."""
EXAMPLES = {int: ("a whole number", "whole numbers like 160,640"), float: ("a number", "numbers like 0.1,0.5")}
"""Texts of one number and of several, in messages."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a number, as metadata of a field's type."""

    least: float = -math.inf
    """Smallest number."""
    above: float = -math.inf
    """Largest number that is too small."""
    below: float = math.inf
    """Smallest number that is too large."""
    most: float = math.inf
    """Largest number."""

    def __str__(self) -> str:
        """Return the range in words, without MAX_COUNT."""
        bounds = {"at least": self.least, "greater than": self.above, "less than": self.below, "at most": self.most}
        shown = [f"{word} {bound}" for word, bound in bounds.items() if abs(bound) not in (math.inf, MAX_COUNT)]
        return " and ".join(shown)

    def expected(self, number: float) -> str | None:
        """Return what a number must be, such as "at least 1"; None if it is. It is always finite."""
        if number == math.inf and self.most == math.inf and self.below == math.inf:
            return f"{self} and finite"
        if not (self.least <= number and self.above < number < self.below):
            return str(self)
        if number > self.most:
            return f"at most {self.most}"
        return None


MAX_SEED = 2**63 - 1
"""Largest seed that PyTorch accepts."""
MAX_PARTS = 1000
"""Largest number of layers, or of bands of an adaptive softmax: each is built, so that a huge number never ends."""

PositiveInt = Annotated[int, Range(least=1, most=MAX_COUNT)]
NaturalInt = Annotated[int, Range(least=0, most=MAX_COUNT)]
AtLeastTwo = Annotated[int, Range(least=2, most=MAX_COUNT)]
PositiveFloat = Annotated[float, Range(above=0)]
NotNegativeFloat = Annotated[float, Range(least=0)]
Rate = Annotated[float, Range(least=0, below=1)]
OpenShare = Annotated[float, Range(above=0, below=1)]
PositiveShare = Annotated[float, Range(above=0, most=1)]
Seed = Annotated[int, Range(least=0, most=MAX_SEED)]


def wrong(subject: str, value: object, expected: str) -> str:
    """Return the error about a value; `subject` is its name, and `expected` describes valid values."""
    shown = list(value) if isinstance(value, tuple) else value
    return f"{subject} must be {expected}, not {shortened(' '.join(repr(shown).split()))}"


def wrong_setting(setting: str, value: object, expected: str) -> RecipeError:
    """Return the error about the value of a setting, such as "train.lr"; `expected` describes valid values."""
    section, _, key = setting.partition(".")
    return RecipeError(wrong(f"[{section}] {key}", value, expected), setting=setting)


@dataclasses.dataclass(frozen=True)
class FieldType:
    """Type of a setting, an option or an argument, read from its annotation."""

    items: tuple[type, ...]
    """Types of the value, or of each item of a list; one for settings and options."""
    is_list: bool = False
    words: tuple[str, ...] = ()
    """Words to choose from: of a Literal, or the names of the table in Annotated[str, table]; empty if it has none.

    If the items are not texts, the whole value may also be one of these words.
    """
    can_be_off: bool = False
    """True if the value may be None; a recipe says "none"."""
    range: Range | None = None
    is_registered: bool = False
    """True if the words are the names of a table, to which packages may add."""

    @classmethod
    def of(cls, annotation: Any) -> "FieldType":
        """Read an annotation."""
        origin = get_origin(annotation)
        parts = get_args(annotation)
        if origin in (Union, types.UnionType):
            return cls._of_union(parts)
        if origin is tuple and parts[-1] is ...:
            item = cls.of(parts[0])
            return cls(item.items, is_list=True, words=item.words, range=item.range)
        if origin is Literal:
            return cls((str,), words=parts)
        if origin is Annotated:
            item, extra = parts
            if isinstance(extra, Range):
                return cls((item,), range=extra)
            return cls((item,), words=tuple(extra), is_registered=True)
        return cls((origin or annotation,))

    @classmethod
    def _of_union(cls, parts: tuple[Any, ...]) -> "FieldType":
        """Read the parts of a union: None, words, and one type of numbers, texts or paths."""
        alternatives = [cls.of(part) for part in parts if part is not types.NoneType]
        first = alternatives[0]
        items: list[type] = []
        words: list[str] = []
        for alternative in alternatives:
            words.extend(alternative.words)
            if not alternative.words or len(alternatives) == 1:
                items.extend(alternative.items)
        can_be_off = types.NoneType in parts
        return cls(tuple(items), first.is_list, words=tuple(words), can_be_off=can_be_off, range=first.range)

    @property
    def item(self) -> type:
        """Type of the value of a setting or an option, or of each item of a list."""
        return self.items[0]

    @property
    def name(self) -> str:
        """Name of the type: "whole number", "one of post, pre", "list of words out of tensorboard, wandb"."""
        if self.words and self.item in (str, bool):
            words = ", ".join(self.words)
            if self.item is bool:
                words = f"true, false, {words}"
            return f"list of words out of {words}" if self.is_list else f"one of {words}"
        name = " or ".join(NAMES.get(item, item.__name__) for item in self.items)
        if self.is_list and self.item is bool:
            name = "list of true and false"
        elif self.is_list:
            name = f"list of {name}s"
        return " or ".join([name, *self.words])

    def __str__(self) -> str:
        """Return the values that are accepted, in words: "number, greater than 0, or none"."""
        values = self.name if self.range is None else f"{self.name}, {self.range}"
        return f"{values}, or {OFF_WORDS[0]}" if self.can_be_off else values

    def read(self, value: Any) -> Any:
        """Convert the value of a recipe: "none" to None, an integer to a float, a list to a tuple, a word to a list."""
        if self.can_be_off and str(value).lower() in OFF_WORDS:
            return None
        if self.is_list and isinstance(value, list | tuple):
            return tuple(map(self._as_float, value))
        if self.is_list and value in self.words:
            return (value,)
        return self._as_float(value)

    def _as_float(self, value: Any) -> Any:
        """Convert a whole number where a number is expected."""
        if self.item is float and type(value) is int:
            return float(value)
        return value

    def parse(self, text: str) -> Any:
        """Convert a text of the command line, a list without duplicates: `0,160,160` -> (0, 160)."""
        if text in self.words:
            return text
        if not self.is_list:
            return self.item(text)
        items = map(self.item, text.split(","))
        return tuple(dict.fromkeys(items))

    @property
    def example(self) -> str:
        """Texts of numbers that `parse` accepts."""
        single, several = EXAMPLES[self.item]
        numbers = several if self.is_list else single
        return ", or ".join([numbers, *self.words])

    def check(
        self, subject: str, value: Any, error: Callable[[str], UsageError] = UsageError, *, off_word: str = ""
    ) -> None:
        """Raise an error, which begins with `subject`, unless a value has this type; it may suggest a word.

        `off_word` is what a user gives for None, if that is a word.
        """
        if value is None and self.can_be_off:
            return
        if self.item is not str and isinstance(value, str) and value in self.words:
            return
        parts = (value,)
        if self.is_list:
            if not isinstance(value, tuple):
                raise error(self._wrong_type(subject, value, value))
            parts = value
        for part in parts:
            if not self._fits(part):
                raise error(self._wrong_type(subject, value, part))
            bound = None if self.range is None else self.range.expected(part)
            if bound is not None:
                if self.can_be_off and off_word:
                    bound += f', or "{off_word}"'
                raise error(wrong(subject, part, bound))

    def _wrong_type(self, subject: str, value: Any, part: Any) -> str:
        """Return the error about a value one part of which has another type, with the word that was probably meant."""
        expected = self.name
        if not expected.startswith(("one of", "true")):
            expected = f"a {expected}"
        message = wrong(subject, value, expected)
        if int in self.items and isinstance(part, float) and part.is_integer():  # such as 1e5
            return f"{message}; write {int(part)}"
        if not isinstance(part, str):
            return message
        meant = did_you_mean(part, self.words)
        if self.is_registered and not meant:
            return f"{message}; if a package registers it, {IMPORT_PACKAGE}"
        return message + meant

    def _fits(self, value: Any) -> bool:
        """Return True if a value, or an item of a list, has the type; its range aside."""
        accepted = self.items
        if float in accepted:
            accepted = (*accepted, int)
        is_bool = isinstance(value, bool)
        if not isinstance(value, accepted) or is_bool != (self.item is bool):
            return False
        is_text = bytes in self.items and isinstance(value, str | bytes)
        if not is_text and (Path in self.items or os.PathLike in self.items):
            return _is_path(value)
        if self.item is str and self.words:
            return value in self.words
        return True


def _is_path(value: Any) -> bool:
    """Return True if the operating system accepts a path, of whatever file."""
    try:
        os.lstat(value)
    except OSError as error:
        return error.errno != errno.ENAMETOOLONG
    except ValueError:  # a null character, or an unpaired surrogate
        return False
    return True


def as_plain(value: Any) -> Any:
    """Return an int or a float for a number of another type, such as numpy's, and a tuple for a list."""
    if isinstance(value, list | tuple):
        return tuple(map(as_plain, value))
    if isinstance(value, bool):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    return value


def check_fields(cls: type, values: Mapping[str, Any]) -> None:
    """Raise a RecipeError if a value of unknown origin does not have the type and range of its field of a dataclass.

    Names that are not fields are ignored, and so are fields without a value.
    """
    for field in dataclasses.fields(cls):
        if field.name in values:
            FieldType.of(field.type).check(f'"{field.name}"', as_plain(values[field.name]), RecipeError)


def from_json(cls: type[Made], values: Any) -> Made:
    """Make a dataclass from a JSON object of unknown origin.

    Raises an UnknownKeyError for a name that is not a field, a KeyError for a missing one, a RecipeError for a wrong
    type, and a ValueError for something else than an object.
    """
    if not isinstance(values, Mapping):
        raise ValueError(f"{shortened(repr(values))} is not an object")
    known = inspect.signature(cls).parameters
    for name in values:
        if name not in known:
            raise UnknownKeyError(f'there is no key "{shortened(name)}"')
    check_fields(cls, values)
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in values:
            raise KeyError(name)
    return cls(**{name: as_plain(value) for name, value in values.items()})


def check_names(function: str, named: Iterable[str], known: Iterable[str]) -> None:
    """Raise an UnknownNameError if a function does not have a named argument."""
    names = [name for name in known if name != "self"]
    for name in named:
        if name not in names:
            raise UnknownNameError(f"argument of {function}()", name, names)


def _check_not_in_options(function: str, named: Iterable[str], signature: inspect.Signature) -> None:
    """Raise a UsageError if an argument belongs into the options that a function takes as one object."""
    if "options" not in signature.parameters:
        return
    (cls,) = FieldType.of(signature.parameters["options"].annotation).items
    fields = [field.name for field in dataclasses.fields(cls)]
    for name in named:
        meant = meant_name(name, [*signature.parameters, *fields])
        if name not in signature.parameters and meant in fields:
            raise UsageError(f"{function}() has no argument {name}; give options={cls.__name__}({meant}=...)")


def checked(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Return a function that raises a UsageError if an argument is unknown, or does not have its annotated type."""
    signature = inspect.signature(function)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in signature.parameters.values())

    @functools.wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        if not takes_any:
            _check_not_in_options(function.__name__, named, signature)
            check_names(function.__name__, named, signature.parameters)
        bound = signature.bind(*arguments, **named)
        for name, value in bound.arguments.items():
            parameter = signature.parameters[name]
            if parameter.annotation is not parameter.empty and parameter.kind is not parameter.VAR_KEYWORD:
                plain = as_plain(value)
                FieldType.of(parameter.annotation).check(f"`{name}`", plain)
                bound.arguments[name] = plain
        return function(*bound.args, **bound.kwargs)

    return call


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the sections of a recipe: checks the type and range of each field.

    A subclass extends `__post_init__` by the rules between its fields.
    """

    section: ClassVar[str]
    """Name of the section."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            error = functools.partial(RecipeError, setting=f"{self.section}.{field.name}")
            subject = f"[{self.section}] {field.name}"
            FieldType.of(field.type).check(subject, getattr(self, field.name), error, off_word=OFF_WORDS[0])

    def reject(self, key: str, expected: str) -> NoReturn:
        """Raise the RecipeError about a setting; `expected` describes valid values."""
        raise wrong_setting(f"{self.section}.{key}", getattr(self, key), expected)

    def require(self, valid: bool, key: str, expected: str) -> None:
        """Raise a RecipeError unless a setting is valid; `expected` describes valid values."""
        if not valid:
            self.reject(key, expected)

    def must_be_default(self, key: str, why: str) -> None:
        """Raise a RecipeError unless a setting has its default; `why` is the end of "must be left out ..."."""
        off = ' (or "none")' if getattr(type(self), key) is None else ""
        self.require(self.is_default(key), key, f"left out{off} {why}")

    def belongs_to(self, key: str, values: Sequence[str], *others: str) -> None:
        """Raise a RecipeError unless `key` has one of these values, or the other settings have their defaults."""
        if getattr(self, key) not in values:
            users = " or ".join(f'"{value}"' for value in values)
            for other in others:
                self.must_be_default(other, f"unless {key} = {users}")

    def is_default(self, key: str) -> bool:
        """Return True if a setting has its default value; one without a default never does."""
        default = getattr(type(self), key, dataclasses.MISSING)
        return bool(getattr(self, key) == default)
