"""Traits of the encodings, optimizers and blocks that settings name, without torch."""

from collections.abc import Callable
from dataclasses import dataclass
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


ENCODING_TRAITS: dict[str, EncodingTraits] = {
    "relative": EncodingTraits(
        limits_distance=True, score_terms=("a", "b", "d"), has_biases=True, projects_distances=True
    ),
    "relative_tied": EncodingTraits(limits_distance=True, score_terms=("a", "b", "d"), projects_distances=True),
    "shaw": EncodingTraits(limits_distance=True, learned_vectors=True, score_terms=("a", "b")),
    "sinusoid": EncodingTraits(absolute_positions=True),
    "learned": EncodingTraits(absolute_positions=True, learned_vectors=True),
    "rotary": EncodingTraits(rotates_pairs=True),
    "alibi": EncodingTraits(score_terms=("a", "d")),
    "t5": EncodingTraits(limits_distance=True, score_terms=("a", "d")),
    "none": EncodingTraits(),
}
"""Traits for each value of `model.position`."""

_OF_GROUPS = frozenset({"weight_decay", "embedding_lr", "decay_norms"})
"""Keys of [train] that `core.training.optimizer.parameter_groups` applies."""
OPTIMIZERS: dict[str, frozenset[str]] = {
    "adam": _OF_GROUPS | {"betas"},
    "adamw": _OF_GROUPS | {"betas"},
    "lamb": _OF_GROUPS | {"betas"},
    "muon": _OF_GROUPS | {"betas", "momentum"},
    "sgd": _OF_GROUPS | {"momentum"},
}
"""Keys of [train] that apply to each value of `train.optimizer`, of those that do not apply to every optimizer."""

OF_BLOCK = "block"
"""Value of the settings below that leaves the choice to `model.block`."""
FEED_FORWARDS: dict[str, int] = {OF_BLOCK: 0, "relu": 2, "swiglu": 3}
"""Number of matrices of the feed-forward sublayer for each value of `model.feed_forward`; 0 for that of the block."""
BlockName = Literal["paper", "modern"]
NormType = Literal["block", "layer", "rms"]
QkNorm = Literal["block", "rms", "none"]
Biases = Literal["block", "all", "none"]


@dataclass(frozen=True, kw_only=True)
class Block:
    """Parts of a layer; the settings of the same names replace single ones."""

    norm_type: NormType
    feed_forward: str
    """One of FEED_FORWARDS, but not that of the block."""
    qk_norm: QkNorm
    biases: Biases


BLOCKS: dict[BlockName, Block] = {
    "paper": Block(norm_type="layer", feed_forward="relu", qk_norm="none", biases="all"),
    "modern": Block(norm_type="rms", feed_forward="swiglu", qk_norm="rms", biases="none"),
}
"""Parts for each value of `model.block`."""
