"""Suggests the known name that a user meant: by the words of other programs first, then by spelling."""

import difflib
import re
import tomllib
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

SIMILARITY = 0.65
"""Smallest similarity of spelling that is suggested, from 0 to 1."""


@cache
def tables() -> dict[str, dict[str, str]]:
    """Return the tables of suggestions.toml: the words of other programs, by what txl has for them."""
    return tomllib.loads((files("txlcli") / "suggestions.toml").read_text(encoding="utf-8"))


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `; did you mean "X"?` with the known name that was probably meant, or an empty string.

    A synonym comes first, then the most similar spelling.
    """
    meant = meant_name(name, known)
    if meant is None:
        return ""
    phrase = tables()["phrases"].get(_plain(name), "")
    if phrase.startswith(meant):
        return f"; did you mean {phrase}?"
    return f'; did you mean "{meant}"?'


def meant_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that was probably meant."""
    names = list(known)
    synonyms = [target for target in _synonyms(name, "names") if target in names]
    return synonyms[0] if synonyms else _similar(name, names)


def meant_setting(section: str, key: str, known: Iterable[str]) -> str | None:
    """Return the setting that was probably meant by a key of a section, as "key", or "section.key" of another one.

    `known` has all settings, as section.key. The same key in another section comes before a similar one in this.
    """
    names = list(known)
    for meant in _synonyms(key, "settings"):
        if meant in names:
            return meant.removeprefix(f"{section}.")
    prefix = f"{section}."
    for name in names:
        if name.endswith(f".{key}"):
            return name
    keys = [name.removeprefix(prefix) for name in names if name.startswith(prefix)]
    return _similar(key, keys)


def meant_option(option: str, options: Iterable[str], settings: Iterable[str]) -> str | None:
    """Return what to write in place of an unknown option (with its dashes); `--set` and a setting if that is known."""
    names = [name for name in options if name != "--help"]
    for target in _synonyms(option, "options"):
        if target.partition(" ")[0] in names:
            return target
    if "--set" in names:
        word = _plain(option).replace("-", "_")
        meant = _synonyms(option, "settings")
        meant += [name for name in settings if name.endswith(f".{word}")]
        if meant:
            return f"--set {meant[0]}=VALUE"
    plain = {_plain(name): name for name in names}
    near = _similar(_plain(option), plain)
    return plain[near] if near else None


def _synonyms(name: str, table: str) -> list[str]:
    """Return the entries of a table that a word may stand for."""
    word = _plain(name)
    entries = tables()[table]
    return [target for target, words in entries.items() if word in words.split()]


def _plain(name: str) -> str:
    return re.sub(r"[\s_]+", "-", name.strip("-_").lower())


def _similar(name: str, known: Iterable[str]) -> str | None:
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=SIMILARITY)
    return next(iter(near), None)
