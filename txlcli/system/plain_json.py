"""Parses JSON and TOML of unknown origin: every text gives a value of moderate depth, or a ValueError."""

import json
import math
import tomllib
from collections.abc import Mapping
from typing import Any, TypeVar

from txlcli.errors import shortened

MAX_DEPTH = 8
"""Deepest nesting of values in TOML; a recipe needs three levels."""
MAX_JSON_DEPTH = 32
LARGEST_INT = 2**63 - 1
"""Largest whole number; Python would accept larger ones and then fail to print them."""
MAX_SHOWN = 40
"""Characters of a value in an error."""
MAX_DOTS = 32
"""Largest number of dots in a line of TOML; Python's parser takes quadratic time and memory for keys with more."""

T = TypeVar("T", bound=str | int | float | bool | list[Any] | dict[str, Any])


def value_of(table: Mapping[str, Any], key: str, kind: type[T]) -> T:
    """Return a value of a JSON object; a whole number may stand for a float.

    Raises:
        ValueError: there is no such key, or its value has another type or is not finite.
    """
    if key not in table:
        raise ValueError(f"{key} is missing")
    value = table[key]
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or (isinstance(value, float) and not math.isfinite(value)):
        raise ValueError(f"{key} is {shortened(json.dumps(value), MAX_SHOWN)}, not a value of type {kind.__name__}")
    return value


def parse_json(text: str | bytes, *, distinct_keys: bool = False) -> Any:
    """Parse JSON.

    Args:
        text: to parse.
        distinct_keys: refuse an object with a key twice, of which programs read one or the other.

    Raises:
        ValueError: it is not JSON, is nested too deeply, or has a number that does not fit 64 bits.
    """
    try:
        return _moderate(json.loads(text, object_pairs_hook=_distinct if distinct_keys else None), MAX_JSON_DEPTH)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, whose keys must differ."""
    table = dict(pairs)
    if len(table) < len(pairs):
        raise ValueError("an object has a key twice")
    return table


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        tomllib.TOMLDecodeError: it is not TOML.
        ValueError: it is nested too deeply, or has a number that does not fit 64 bits.
    """
    if any(line.count(".") > MAX_DOTS for line in text.splitlines() if not line.lstrip().startswith("#")):
        raise ValueError(f"a line has more than {MAX_DOTS} dots")
    try:
        table: dict[str, Any] = _moderate(tomllib.loads(text), MAX_DEPTH)
    except RecursionError:
        raise ValueError(f"nested more than {MAX_DEPTH} levels deep") from None
    except tomllib.TOMLDecodeError:
        raise
    except ValueError as error:
        reason = "a number does not fit 64 bits" if "digits" in str(error) else str(error)
        raise ValueError(reason) from None
    return table


def _moderate(value: Any, depth: int) -> Any:
    """Return a value that is not nested too deeply, and has no number that is too large."""
    level = [value]
    for _ in range(depth + 1):
        kinds = set(map(type, level))  # a vocabulary has long lists of texts
        if int in kinds and any(type(item) is int and abs(item) > LARGEST_INT for item in level):
            raise ValueError("a number does not fit 64 bits")
        if not kinds & {dict, list}:
            return value
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
        ]
    raise ValueError(f"nested more than {depth} levels deep")
