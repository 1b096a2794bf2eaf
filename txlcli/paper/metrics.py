"""Sums of nats -> bits per character, bits per byte, perplexities: pure arithmetic.

Losses are summed in nats everywhere else; they are converted here and nowhere else.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

METRIC_TITLES = {
    "bpc": "bpc",
    "ppl": "ppl",
    "ppl_per_word": "ppl/word",
    "bits_per_byte": "bits/byte",
}


@dataclass(frozen=True, kw_only=True)
class Scored:
    """What a sum of losses covers."""

    tokens: int
    """Tokens predicted."""
    words: int | None = None
    """Original words they stand for, line ends counted as the benchmark does; None where that cannot be said."""
    bytes: int | None = None
    """Original bytes they stand for; None unless all bytes of the text are scored."""


def bits(nats: float) -> float:
    """Nats -> bits."""
    return nats / math.log(2)


def perplexity(mean_nats: float) -> float:
    """exp(nats); infinite where that overflows."""
    try:
        return math.exp(mean_nats)
    except OverflowError:
        return math.inf


def finite(value: float) -> float | None:
    """The number, or None where JSON has no word for it: an infinite perplexity, a loss that is not a number."""
    return value if math.isfinite(value) else None


def without_infinities(result: Any) -> Any:
    """A result as JSON can say it: `finite` of every number in it, however deep."""
    if isinstance(result, Mapping):
        return {key: without_infinities(value) for key, value in result.items()}
    if isinstance(result, list | tuple):
        return [without_infinities(value) for value in result]
    return finite(result) if isinstance(result, float) else result


def in_metric(mean_nats: float, metric: str) -> float:
    """A mean loss in the corpus's metric: "bpc" or "ppl"."""
    return bits(mean_nats) if metric == "bpc" else perplexity(mean_nats)


def measures(total_nats: float, scored: Scored) -> dict[str, float]:
    """Every measure that the counts allow, by name: bpc, ppl, ppl_per_word, bits_per_byte."""
    mean = total_nats / scored.tokens
    result = {"bpc": bits(mean), "ppl": perplexity(mean)}
    if scored.words:
        result["ppl_per_word"] = perplexity(total_nats / scored.words)
    if scored.bytes:
        result["bits_per_byte"] = bits(total_nats) / scored.bytes
    return result


def metric_of(unit: str) -> str:
    """What losses per token of a unit are shown as; a tokenizer may stand for its unit.

    bpc is per character or byte, so words and pieces show perplexity instead.
    """
    return "bpc" if unit in ("byte", "char") else "ppl"


def wanted_measures(unit: str, available: dict[str, float]) -> list[str]:
    """The measures that make sense for a token's unit, its metric first.

    Pieces also show what is comparable between tokenizers. Characters have no bits per byte: the first one has no
    context and is not scored, so some bytes never are.
    """
    if metric_of(unit) == "bpc":
        names = ["bpc", "ppl"]
    elif unit == "word":
        names = ["ppl"]
    else:
        names = ["ppl", "ppl_per_word", "bits_per_byte"]
    return [name for name in names if name in available]


SHORTENED_FROM = 1e7
"""Measures from here on are written with an exponent: more digits carry no information."""


def format_measure(value: float | None) -> str:
    """Format a loss or perplexity: 4.703, or 2.7e10 from ten million on; None stands for infinity."""
    if value is None or value == math.inf:
        return "inf"
    if abs(value) < SHORTENED_FROM:
        return f"{value:.3f}"
    digits, _, exponent = f"{value:.1e}".partition("e")
    return f"{digits}e{int(exponent)}"


def format_ratio(ratio: float) -> str:
    """Format a ratio: 363x, 4.2x, 0.35x."""
    digits = 0 if ratio >= 10 else 1 if ratio >= 1 else 2
    return f"{ratio:,.{digits}f}x"
