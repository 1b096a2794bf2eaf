"""The values that settings accept; an error reports the section, the key, the value and what it must be."""

import dataclasses
import math
import types
from typing import Annotated, Any, ClassVar, Literal, Union, get_args, get_origin

from txlcli.errors import RecipeError
from txlcli.suggestions import did_you_mean

MAX_COUNT = 2**31 - 1
"""Largest number of steps, tokens, layers or units; PyTorch does not accept larger numbers everywhere."""


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
    most: float | None = None
    """Largest number that has a meaning."""
    limit: float | None = None
    """Largest number that can be computed; None is MAX_COUNT for whole numbers, and no limit for others."""

    def largest(self, *, is_whole: bool) -> float:
        """Return the largest number, of whole numbers or of all."""
        if self.most is not None:
            return self.most
        return self.limit if self.limit is not None else MAX_COUNT if is_whole else math.inf

    def check(self, section: str, key: str, value: int | float) -> None:
        """Raise a RecipeError unless the number is in the range."""
        most = math.inf if self.most is None else self.most
        inside = self.least <= value <= most and self.above < value < self.below
        require(inside, section, key, value, "a finite number" if value == math.inf else self.description)
        largest = self.largest(is_whole=isinstance(value, int))
        require(value <= largest, section, key, value, f"at most {largest}")


POSITIVE = Range("greater than 0", above=0)
NOT_NEGATIVE = Range("0 or more", least=0)

MAX_PARTS = 1000
"""Largest number of layers, or of bands of an adaptive softmax: each is built, so that a huge number never ends."""

PositiveInt = Annotated[int, POSITIVE]
PositiveFloat = Annotated[float, POSITIVE]
PartCount = Annotated[int, Range("greater than 0", above=0, limit=MAX_PARTS)]
NaturalInt = Annotated[int, NOT_NEGATIVE]
NotNegativeFloat = Annotated[float, NOT_NEGATIVE]
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
    """Words to choose from: of a Literal, or the names of the table in Annotated[str, table]; empty if it has none."""
    can_be_off: bool = False
    """True if the value may be None; a recipe says "none"."""
    range: Range | None = None

    @classmethod
    def of(cls, annotation: Any) -> "FieldType":
        """Read an annotation."""
        kind, parts = get_origin(annotation), get_args(annotation)
        if kind in (Union, types.UnionType):
            (option,) = (part for part in parts if part is not types.NoneType)
            return dataclasses.replace(cls.of(option), can_be_off=True)
        if kind is tuple:
            return dataclasses.replace(cls.of(parts[0]), is_list=True)
        if kind is Literal:
            return cls(str, words=parts)
        if kind is Annotated:
            extra = annotation.__metadata__[0]
            return cls(parts[0], range=extra) if isinstance(extra, Range) else cls(str, words=tuple(extra))
        return cls(annotation)

    @property
    def name(self) -> str:
        """Name of the type: "whole number", "list of words"."""
        names = {int: "whole number", float: "number", bool: "true or false", str: "text"}
        name = "word" if self.words else names[self.item]
        return name if not self.is_list else f"list of {'true and false' if self.item is bool else name + 's'}"

    def check(self, section: str, key: str, value: Any) -> None:
        """Raise a RecipeError unless words and numbers are accepted: it suggests a word, or reports the range."""
        if value is None:
            return
        for word in (value if self.is_list else [value]) if self.words else ():
            if word not in self.words:
                known = ", ".join(self.words)
                suggestion = did_you_mean(word, self.words)
                raise RecipeError(f"[{section}] {key} must be one of {known}, not {word!r}{suggestion}")
        if self.words and self.is_list:
            require(len(set(value)) == len(value), section, key, value, "a list without repeated words")
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
