"""Parses JSON of unknown origin: every text gives a value, or a ValueError."""

import json
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
