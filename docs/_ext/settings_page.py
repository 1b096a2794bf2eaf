"""Markdown of the settings: key, values, default and description of each, as `txl recipes keys` prints them."""

import inspect
import re
from collections.abc import Iterator

from txlcli.config.keys import Key, keys
from txlcli.config.recipe import SECTIONS


def lines() -> Iterator[str]:
    """Yield the Markdown of all sections.

    Raises:
        LookupError: a section or key has no description.
    """
    for section, cls in SECTIONS.items():
        summary = (inspect.getdoc(cls) or "").split(":", 1)[-1].split("\n\n")[0].strip()
        if not summary:
            raise LookupError(f"{section} has no description")
        yield f"## [{section}]\n"
        yield f"{_escaped(summary[0].upper() + summary[1:])}\n"
        for key in keys(section):
            yield from _entry(key)


def _entry(key: Key) -> Iterator[str]:
    if not key.description:
        raise LookupError(f"{key.full_name} has no description")
    default = key.shown_default if key.required or key.default is None else f"default `{key.shown_default}`"
    facts = [key.values, *([default] if default != "-" else [])]
    if key.architectures:
        facts.append("only with arch = " + " or ".join(f'"{name}"' for name in key.architectures))
    anchor = "-".join([key.section, key.name, *key.architectures[:1]]).replace("_", "-")
    yield f"[`{key.full_name}`]{{#{anchor}}}\n: {'; '.join(facts)}\n\n  {_escaped(key.description)}\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]*_<>|])", r"\\\1", text)
