"""The values that settings accept; an error reports the section, the key, the value and what it must be."""

import dataclasses
import math
import types
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from txlcli.errors import RecipeError
from txlcli.suggestions import did_you_mean

MAX_COUNT = 2**31 - 1
"""Largest number of steps, tokens, layers or units; PyTorch does not accept larger numbers everywhere."""
OFF_WORDS = ("none", "off")


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a number, as metadata of a field's type."""

    description: str
    """Requirement, as an error gives it."""
    least: float = -math.inf
    """Smallest number."""
    above: float = -math.inf
    """Largest number that is too small."""
    below: float = math.inf
    """Smallest number that is too large."""
    most: float = math.inf
    """Largest number."""

    def check(self, section: str, key: str, value: int | float) -> None:
        """Raise a RecipeError unless the number is in the range."""
        inside = self.least <= value and self.above < value < self.below
        require(inside, section, key, value, self.description)
        require(value <= self.most, section, key, value, f"at most {self.most}")


MAX_PARTS = 1000
"""Largest number of layers, or of bands of an adaptive softmax: each is built, so that a huge number never ends."""

PositiveInt = Annotated[int, Range("greater than 0", above=0, most=MAX_COUNT)]
PositiveFloat = Annotated[float, Range("greater than 0", above=0)]
PartCount = Annotated[int, Range("greater than 0", above=0, most=MAX_PARTS)]
NaturalInt = Annotated[int, Range("0 or more", least=0, most=MAX_COUNT)]
NotNegativeFloat = Annotated[float, Range("0 or more", least=0)]
Rate = Annotated[float, Range("at least 0 and less than 1", least=0, below=1)]
OpenShare = Annotated[float, Range("between 0 and 1", above=0, below=1)]
Share = Annotated[float, Range("from 0 to 1", least=0, most=1)]


def require(valid: bool, section: str, key: str, value: object, expected: str) -> None:
    """Raise a RecipeError unless the value is valid; `expected` describes valid values."""
    if not valid:
        shown = list(value) if isinstance(value, tuple) else value
        raise RecipeError(f"[{section}] {key} must be {expected}, not {shown!r}")


@dataclasses.dataclass(frozen=True)
class FieldType:
    """Type of a setting, read from the annotation of its field."""

    item: type
    """int, float, bool or str: type of the value, or of each item of a list."""
    is_list: bool = False
    words: tuple[str, ...] = ()
    """Words to choose from: of a Literal, or the names of the table in Annotated[str, table]; empty if it has none.

    A boolean may also be one of these words.
    """
    can_be_off: bool = False
    """True if the value may be None; a recipe says "none"."""
    range: Range | None = None

    @classmethod
    def of(cls, annotation: Any) -> "FieldType":
        """Read an annotation."""
        kind, parts = get_origin(annotation), get_args(annotation)
        if kind in (Union, types.UnionType):
            words = get_args(parts[1])  # of a Literal; none of None
            return dataclasses.replace(cls.of(parts[0]), words=words, can_be_off=not words)
        if kind is tuple:
            return dataclasses.replace(cls.of(parts[0]), is_list=True)
        if kind is Literal:
            return cls(str, words=parts)
        if kind is Annotated:
            item, extra = parts
            return cls(item, range=extra) if isinstance(extra, Range) else cls(item, words=tuple(extra))
        return cls(annotation)

    @property
    def name(self) -> str:
        """Name of the type: "whole number", "list of words"."""
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        if self.words and self.item is not str:
            return ", ".join(("true", "false", *self.words)) if self.item is bool else f"number or {self.words[0]}"
        name = "word" if self.words else names[self.item]
        return name if not self.is_list else f"list of {'true and false' if self.item is bool else name + 's'}"

    def read(self, section: str, key: str, value: Any) -> Any:
        """Convert the value of a recipe: "none" to None, an integer to a float, a list to a tuple, a word to a list."""
        if self.can_be_off and str(value).lower() in OFF_WORDS:
            return None
        if self.is_list:
            parts = [value] if self.words and isinstance(value, str) else value
            accepted = (int, float) if self.item is float else (self.item,)
            if isinstance(parts, list | tuple) and all(type(part) in accepted for part in parts):
                return tuple(dict.fromkeys(parts) if self.words else map(self.item, parts))
        elif type(value) is self.item or value in self.words:
            return value
        elif self.item is float and type(value) is int:
            return float(value)
        article = "a " if self.item is not bool or self.is_list else "one of " if self.words else ""
        raise RecipeError(f"[{section}] {key} must be {article}{self.name}, not {value!r}")

    def check(self, section: str, key: str, value: Any) -> None:
        """Raise a RecipeError unless words and numbers are accepted: it suggests a word, or reports the range."""
        if value is None or (self.item is not str and value in self.words):
            return
        for word in (value if self.is_list else [value]) if self.words and self.item is str else ():
            if word not in self.words:
                suggestion = did_you_mean(str(word), self.words)
                expected = f"one of {', '.join(self.words)}"
                raise RecipeError(f"[{section}] {key} must be {expected}, not {word!r}{suggestion}")
        if self.range is not None:
            self.range.check(section, key, value)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Section:
    """Base of the sections of a recipe: checks the fields."""

    section: ClassVar[str]
    """Name of the section."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            FieldType.of(field.type).check(self.section, field.name, getattr(self, field.name))

    def require(self, valid: bool, key: str, expected: str) -> None:
        """Raise a RecipeError unless a setting is valid; `expected` describes valid values."""
        require(valid, self.section, key, getattr(self, key), expected)

    def is_default(self, key: str) -> bool:
        """Return True if a setting has its default value; one without a default never does."""
        return bool(getattr(self, key) == getattr(type(self), key, dataclasses.MISSING))

    def require_default(self, key: str, why: str) -> None:
        """Raise a RecipeError if a setting that is not used has a value; `why` follows "left out"."""
        self.require(self.is_default(key), key, f"left out {why}")
