"""Markdown of the settings: key, values, default and description of each, as `txl recipes keys` prints them."""

import inspect
import re
from collections.abc import Iterator

from txlcli.config.recipe import NO_VALUE, REQUIRED, SECTIONS, Key, described_keys


def lines() -> Iterator[str]:
    """Yield the Markdown of all sections.

    Raises:
        LookupError: a section has no description.
        ValueError: a key has no description.
    """
    for section, cls in SECTIONS.items():
        summary = (inspect.getdoc(cls) or "").split(":", 1)[-1].split("\n\n")[0].strip()
        if not summary:
            raise LookupError(f"{section} has no description")
        yield f"## [{section}]\n"
        yield f"{_escaped(summary[0].upper() + summary[1:])}\n"
        for key in described_keys(section):
            yield from _entry(key)


def _entry(key: Key) -> Iterator[str]:
    default = {REQUIRED: [REQUIRED], NO_VALUE: []}.get(key.default, [f"default `{key.default}`"])
    facts = [key.values, *default]
    if key.arch:
        facts.append("only with arch = " + " or ".join(f'"{name}"' for name in key.arch))
    anchor = "-".join([key.setting.replace(".", "-"), *(key.arch or ())[:1]]).replace("_", "-")
    yield f"[`{key.setting}`]{{#{anchor}}}\n: {'; '.join(facts)}\n\n  {_escaped(key.description)}\n"


def _escaped(text: str) -> str:
    return re.sub(r"([\[\]*_<>|])", r"\\\1", text)
