"""Parses JSON and TOML of unknown origin: every text gives a value, or a ValueError."""

import json
import math
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from txlcli.errors import shortened

MAX_DEPTH = 8
"""Deepest nesting of values in TOML; a recipe needs three levels."""
LARGEST_INT = 2**63 - 1
"""Largest whole number; Python would accept larger ones and then fail to print them."""
MAX_SHOWN = 40
"""Characters of a value in an error."""

T = TypeVar("T", bound=str | int | float | bool | list[Any] | dict[str, Any])


def value_of(table: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return a value of a JSON object; a whole number may stand for a float."""
    if key not in table:
        raise ValueError(f"{key} is missing")
    value = table[key]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{key} is {shortened(json.dumps(value), MAX_SHOWN)}, not a value of type {kind.__name__}")
    return value


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError if it is not JSON, too deep, or has a number that does not fit 64 bits."""
    try:
        return json.loads(text, parse_int=_whole_number)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _whole_number(digits: str) -> int:
    number = int(digits)
    _check(number)
    return number


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML; raise a TOMLDecodeError, or a ValueError if it is too deep or has a number that is too large."""
    try:
        table = tomllib.loads(text)
        _check(table)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        reason = "a number does not fit 64 bits" if "digits" in str(error) else str(error)
        raise ValueError(reason) from None
    return table


def _check(value: Any, depth: int = MAX_DEPTH) -> None:
    """Check the depth of a value, and its whole numbers."""
    if depth < 0:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep")
    if type(value) is int and abs(value) > LARGEST_INT:
        raise ValueError("a number does not fit 64 bits")
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        _check(inner, depth - 1)
