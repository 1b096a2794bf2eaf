"""Types and ranges of the plain values that a checkpoint saves."""

from dataclasses import dataclass
from typing import Any

from txlcli.config.ranges import FieldType, NaturalInt, NotNegativeFloat, PositiveFloat, check_fields
from txlcli.errors import RecipeError


@dataclass(frozen=True, kw_only=True)
class SavedState:
    """Plain values of a checkpoint that txl computes with; weights alone lack some of them."""

    step: NaturalInt
    place: dict[str, int]
    """Epoch and segment."""
    validated: NaturalInt
    best_nats: NotNegativeFloat | None
    stale: NaturalInt
    average: dict[str, Any]
    lr_scale: PositiveFloat
    scaler: dict[str, Any]
    interval: dict[str, Any]
    skipped_in_a_row: NaturalInt
    compiled: bool
    model: dict[str, Any]
    run_id: str | None
    vocab_fingerprint: str


def check_state(state: dict[str, Any]) -> None:
    """Raise a RecipeError if the state of a checkpoint has no step, or a value of the wrong type or out of range."""
    if "step" not in state:
        raise RecipeError("it has no step")
    check_fields(SavedState, state)
    for number in state.get("place", {}).values():
        FieldType.of(NaturalInt).check('"place"', number, RecipeError)
