"""Published results of models with other memories at the sizes of the paper's models, as data."""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class PublishedResult:
    """A result on a test split."""

    system: str
    parameters: str
    """Parameter count as printed; "-" if the source has none."""
    corpus: Literal["enwik8", "text8", "wt103"]
    value: float
    metric: Literal["bpc", "ppl"]
    source: str


_RMT = "Bulatov et al. (2022), arXiv 2207.06881, Tables 4 and 5"
_SPAN = "README of facebookresearch/adaptive-span"
_SEQUENTIAL = "README of facebookresearch/transformer-sequential"

PUBLISHED = (
    PublishedResult("Transformer-XL, trained again", "41M", "enwik8", 1.071, "bpc", _RMT),
    PublishedResult("Transformer-XL, trained again, L = 150", "151M", "wt103", 24.12, "ppl", _RMT),
    PublishedResult("no memory, L = 150", "151M", "wt103", 29.95, "ppl", _RMT),
    PublishedResult("RMT, 10 memory tokens, 3 segments, L = 150", "151M", "wt103", 25.04, "ppl", _RMT),
    PublishedResult("Transformer-XL with RMT, 150 and 10, twice the steps", "151M", "wt103", 23.99, "ppl", _RMT),
    PublishedResult("Transformer-XL, L = 128, M = 40", "-", "enwik8", 1.230, "bpc", _RMT),
    PublishedResult("RMT, L = 128, 2 segments", "-", "enwik8", 1.228, "bpc", _RMT),
    PublishedResult("adaptive span", "38M", "enwik8", 1.02, "bpc", _SPAN),
    PublishedResult("adaptive span", "39M", "text8", 1.11, "bpc", _SPAN),
    PublishedResult("Expire-Span, 12 layers", "38M", "enwik8", 0.994, "bpc", _SEQUENTIAL),
    PublishedResult("Feedback Transformer", "77M", "enwik8", 0.962, "bpc", _SEQUENTIAL),
)
"""Results that were read in their source."""
