"""Checks the values of settings; an error names the section, the key, the value and what it must be."""

import dataclasses
import math
from typing import Annotated, Any, Literal, get_args, get_origin

from txlcli.errors import RecipeError
from txlcli.suggestions import did_you_mean

MOST_COUNT = 2**31 - 1
"""Largest number of steps, tokens, layers or units; PyTorch does not accept larger numbers everywhere."""


def require(valid: bool, section: str, key: str, value: object, expected: str) -> None:
    """Raise a RecipeError unless the value is valid; `expected` describes valid values."""
    if not valid:
        raise RecipeError(f"[{section}] {key} must be {expected}, not {value!r}")


def _expected(value: object, range_: str) -> str:
    return "a finite number" if value == math.inf else range_


def positive(section: str, instance: object, *keys: str) -> None:
    """Refuse numbers that are not greater than 0; None is accepted."""
    for key in keys:
        value = getattr(instance, key)
        require(value is None or 0 < value < math.inf, section, key, value, _expected(value, "greater than 0"))


def not_negative(section: str, instance: object, *keys: str) -> None:
    """Refuse numbers below 0; None is accepted."""
    for key in keys:
        value = getattr(instance, key)
        require(value is None or 0 <= value < math.inf, section, key, value, _expected(value, "0 or more"))


def at_most_largest_count(section: str, instance: Any, *, exempt: str | None = None) -> None:
    """Refuse integers above MOST_COUNT in all fields but `exempt`."""
    for field in dataclasses.fields(instance):
        value = getattr(instance, field.name)
        if field.name != exempt and isinstance(value, int):
            require(value <= MOST_COUNT, section, field.name, value, f"at most {MOST_COUNT}")


def words_of(field_type: Any) -> tuple[str, ...] | None:
    """Return the words that a field accepts: of a Literal, or the names of the table in Annotated[str, table]."""
    if get_origin(field_type) is Literal:
        return get_args(field_type)
    return tuple(field_type.__metadata__[0]) if get_origin(field_type) is Annotated else None


def known_words(section: str, instance: Any) -> None:
    """Refuse words that their field does not accept, with a suggestion."""
    for field in dataclasses.fields(instance):
        known, value = words_of(field.type), getattr(instance, field.name)
        if known is not None and value not in known:
            raise RecipeError(
                f"[{section}] {field.name} must be one of {', '.join(known)}, not {value!r}{did_you_mean(value, known)}"
            )
