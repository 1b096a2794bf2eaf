"""Results as JSON, and JSON of unknown origin: every text gives a value, or a ValueError."""

import dataclasses
import json
import math
from collections.abc import Mapping
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Parse JSON; raise a ValueError if it is not JSON, or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def as_json(result: Any) -> Any:
    """Return a nested result as JSON can hold it: dataclasses as objects, and None for infinity and NaN."""
    if hasattr(result, "to_json"):
        result = result.to_json()
    elif dataclasses.is_dataclass(result):
        result = vars(result)
    if isinstance(result, Mapping):
        return {key: as_json(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return list(map(as_json, result))
    if isinstance(result, float) and not math.isfinite(result):
        return None
    return result
