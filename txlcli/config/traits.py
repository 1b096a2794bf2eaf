"""Traits of the encodings, optimizers and blocks that settings name, without torch; traits.toml has those of txl."""

import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, TypeVar

Traits = TypeVar("Traits")


def register(table: dict[str, Traits], name: str, traits: Traits) -> None:
    """Add a row to one of the tables below, so that its setting accepts the name."""
    if name in table:
        raise ValueError(f'"{name}" is registered already')
    table[name] = traits


@dataclass(frozen=True, kw_only=True)
class EncodingTraits:
    """Properties of one encoding; the computation is a class of `core/model/encodings.py` with the same name."""

    limits_distance: bool = False
    """`max_distance` applies: larger distances share one encoding, at evaluation those beyond the trained L + M. False
    for encodings that need no such limit, even if their score depends on distance (rotary, alibi)."""
    absolute_positions: bool = False
    """Positions count from the start of the segment, so a memory can only be used if the model was trained with one."""
    learned_vectors: bool = False
    """It learns `n_positions` vectors: one per distance, or one per position of a segment, which limits its length."""
    score_terms: tuple[str, ...] = ()
    """Terms of the score (section 3.3) that `txl attention` compares: (b) with a position key, (d) with v or a bias by
    distance. Empty if the score is term (a) alone."""
    has_biases: bool = False
    """The score has the trained biases u and v, so `tie_biases` applies."""
    projects_distances: bool = False
    """Each layer projects the distance encodings (W_kR or W_k), once per segment."""
    rotates_pairs: bool = False
    """It rotates pairs of channels of queries and keys, so the head width must be even."""
    check: Callable[[Any], None] | None = None
    """Requirements of its own: gets the `TransformerSettings`, raises RecipeError."""


ROWS = tomllib.loads((files("txlcli.config") / "traits.toml").read_text(encoding="utf-8"))
ENCODINGS = {
    name: EncodingTraits(**{**row, "score_terms": tuple(row.get("score_terms", ()))})
    for name, row in ROWS["encodings"].items()
}
"""Traits for each value of `model.position`."""
OPTIMIZERS = {name: frozenset(keys) for name, keys in ROWS["optimizers"].items()}
"""Keys of [train] that apply to each value of `train.optimizer`, of those that do not apply to every optimizer."""

OF_BLOCK = "block"
"""Value of the settings below that leaves the choice to `model.block`."""
NormType = Literal["block", "layer", "rms"]
FeedForwardType = Literal["block", "relu", "swiglu"]
QkNorm = Literal["block", "rms", "none"]
Biases = Literal["block", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Parts of a layer; the settings of the same names replace single ones."""

    norm_type: NormType
    feed_forward: FeedForwardType
    qk_norm: QkNorm
    biases: Biases


BLOCKS = {name: Block(**row) for name, row in ROWS["blocks"].items()}
"""Parts for each value of `model.block`."""
