"""Blocks: what the layers of a Transformer consist of, without torch."""

from dataclasses import dataclass
from typing import Literal

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


BLOCKS: dict[str, Block] = {
    "paper": Block(norm_type="layer", feed_forward="relu", qk_norm="none", biases="all"),
    "modern": Block(norm_type="rms", feed_forward="swiglu", qk_norm="rms", biases="none"),
}
"""Parts for each value of `model.block`."""
