"""The values that settings accept; an error names the section, the key, the value and what it must be."""

import dataclasses
import math
import types
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from txlcli.errors import RecipeError
from txlcli.suggestions import did_you_mean

MAX_COUNT = 2**31 - 1
"""Largest number of steps, tokens, layers or units; PyTorch does not accept larger numbers everywhere."""


@dataclasses.dataclass(frozen=True)
class Range:
    """Range of a number, as metadata of a field's type."""

    description: str
    """Requirement, as an error states it."""
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
LESS_THAN_1 = Range("at least 0 and less than 1", least=0, below=1)

MAX_PARTS = 1000
"""Largest number of layers, or of bands of an adaptive softmax: each is built, so that a huge number never ends."""

PositiveInt = Annotated[int, POSITIVE]
PositiveFloat = Annotated[float, POSITIVE]
PartCount = Annotated[int, Range("greater than 0", above=0, limit=MAX_PARTS)]
NaturalInt = Annotated[int, NOT_NEGATIVE]
NotNegativeFloat = Annotated[float, NOT_NEGATIVE]
Rate = Annotated[float, LESS_THAN_1]
OpenShare = Annotated[float, Range("between 0 and 1", above=0, below=1)]
Share = Annotated[float, Range("from 0 to 1", least=0, most=1)]


def require(valid: bool, section: str, key: str, value: object, expected: str) -> None:
    """Raise a RecipeError unless the value is valid; `expected` describes valid values."""
    if not valid:
        raise RecipeError(f"[{section}] {key} must be {expected}, not {value!r}")


def options_of(field_type: Any) -> tuple[Any, ...]:
    """Return the members of a union type, or the type itself."""
    return get_args(field_type) if get_origin(field_type) in (Union, types.UnionType) else (field_type,)


def plain_options(field_type: Any) -> list[Any]:
    """Return the members of a union type, or the type itself, without ranges."""
    return [option if range_of(option) is None else get_args(option)[0] for option in options_of(field_type)]


def words_of(field_type: Any) -> tuple[str, ...] | None:
    """Return the words that a field accepts: of a Literal, or the names of the table in Annotated[str, table]."""
    if get_origin(field_type) is Literal:
        return get_args(field_type)
    table = field_type.__metadata__[0] if get_origin(field_type) is Annotated else None
    return tuple(table) if isinstance(table, Mapping) else None


def item_words_of(field_type: Any) -> tuple[str, ...] | None:
    """Return the words that a list accepts, or None if the field is not a list of words."""
    return words_of(get_args(field_type)[0]) if get_origin(field_type) is tuple else None


def range_of(field_type: Any) -> Range | None:
    """Return the range of a number, or None if the type has none."""
    for option in options_of(field_type):
        if get_origin(option) is Annotated and isinstance(option.__metadata__[0], Range):
            return option.__metadata__[0]
    return None


def check_fields(section: str, instance: Any) -> None:
    """Refuse words and numbers that their field does not accept; None is accepted.

    Raises:
        RecipeError: the message suggests a word, or names the range.
    """
    for field in dataclasses.fields(instance):
        value, words, range_ = getattr(instance, field.name), words_of(field.type), range_of(field.type)
        if words is not None:
            _check_word(section, field.name, value, words)
        items = item_words_of(field.type)
        if items is not None:
            for item in value:
                _check_word(section, field.name, item, items)
            require(len(set(value)) == len(value), section, field.name, list(value), "a list without repeated words")
        if range_ is not None and value is not None:
            range_.check(section, field.name, value)


def _check_word(section: str, key: str, word: Any, known: tuple[str, ...]) -> None:
    if word not in known:
        raise RecipeError(
            f"[{section}] {key} must be one of {', '.join(known)}, not {word!r}{did_you_mean(word, known)}"
        )
