"""Traits of the position encodings, without torch: what settings, forecasts and views need to know of each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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
    transformer_xl: bool = False
    """It is the encoding of the paper, as the released code and Hugging Face implement it."""
    check: Callable[[Any], None] | None = None
    """Requirements of its own: gets the `TransformerSettings`, raises RecipeError."""


def _check_pairs(model: Any) -> None:
    """Reject an odd head width: rotary encodings rotate pairs."""
    model.require(model.d_head % 2 == 0, "d_head", f'even with position = "{model.position}"')


ENCODINGS: dict[str, EncodingTraits] = {
    "relative": EncodingTraits(
        limits_distance=True,
        score_terms=("a", "b", "d"),
        has_biases=True,
        projects_distances=True,
        transformer_xl=True,
    ),
    "relative_tied": EncodingTraits(limits_distance=True, score_terms=("a", "b", "d"), projects_distances=True),
    "shaw": EncodingTraits(limits_distance=True, learned_vectors=True, score_terms=("a", "b")),
    "sinusoid": EncodingTraits(absolute_positions=True),
    "learned": EncodingTraits(absolute_positions=True, learned_vectors=True),
    "rotary": EncodingTraits(check=_check_pairs),
    "alibi": EncodingTraits(score_terms=("a", "d")),
    "t5": EncodingTraits(limits_distance=True, score_terms=("a", "d")),
    "none": EncodingTraits(),
}
"""Traits for each value of `model.position`."""


def register_encoding(name: str, traits: EncodingTraits) -> None:
    """Add an encoding, so that `model.position` accepts its name."""
    if name in ENCODINGS:
        raise ValueError(f'the encoding "{name}" is registered already')
    ENCODINGS[name] = traits


def limits_distance(position: object) -> bool:
    """Return True if `position`, read from a file, names an encoding to which `max_distance` applies."""
    return isinstance(position, str) and position in ENCODINGS and ENCODINGS[position].limits_distance
