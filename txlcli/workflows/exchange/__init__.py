"""Files of other systems, read and written: weights, settings, vocabularies, tokens and text."""

import tomllib
from importlib.resources import files
from typing import Any


def load_table(name: str) -> dict[str, Any]:
    """Load a TOML file of this package."""
    return tomllib.loads((files(__name__) / f"{name}.toml").read_text(encoding="utf-8"))
