"""Checks the ranges of settings: an error names section, key, value and what it must be."""

import math
from collections.abc import Collection

from txlcli.errors import RecipeError, did_you_mean


def require(good: bool, section: str, key: str, value: object, wish: str) -> None:
    """Refuse a value that is not good; `wish` says what it must be."""
    if not good:
        raise RecipeError(f"[{section}] {key} must be {wish}, not {value!r}")


def positive(section: str, instance: object, *keys: str) -> None:
    """Refuse numbers that are not greater than 0; None is no number."""
    for key in keys:
        value = getattr(instance, key)
        require(value is None or 0 < value < math.inf, section, key, value, "greater than 0")


def not_negative(section: str, instance: object, *keys: str) -> None:
    """Refuse numbers below 0; None is no number."""
    for key in keys:
        value = getattr(instance, key)
        require(value is None or 0 <= value < math.inf, section, key, value, "0 or more")


def one_of(section: str, instance: object, key: str, known: Collection[str]) -> None:
    """Refuse a word that is not known, with a suggestion."""
    value = getattr(instance, key)
    if value not in known:
        raise RecipeError(
            f"[{section}] {key} must be one of {', '.join(known)}, not {value!r}{did_you_mean(value, known)}"
        )
