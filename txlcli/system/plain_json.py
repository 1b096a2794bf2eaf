"""Parses JSON and TOML of unknown origin: every text gives a value of moderate depth, or a ValueError."""

import json
import tomllib
from typing import Any

MOST_NESTED = 50
"""Greatest depth of lists and objects; the files of txl have six levels at most."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON.

    Raises:
        ValueError: it is no JSON, is nested too deeply, or has a number of too many digits.
    """
    try:
        return _moderate(json.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def parse_toml(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: it is no TOML, is nested too deeply, or has a number of too many digits.
    """
    try:
        table: dict[str, Any] = _moderate(tomllib.loads(text))
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    return table


def _moderate(value: Any) -> Any:
    """Return a value that is not nested too deeply."""
    level = [value]
    for _ in range(MOST_NESTED):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return value
    raise ValueError(f"nested more than {MOST_NESTED} levels deep")
