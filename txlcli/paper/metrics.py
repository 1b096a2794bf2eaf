"""Converts sums of nats to bits per character, bits per byte and perplexities, and formats them.

Losses are summed in nats everywhere else and converted only here.
"""

import math
from collections.abc import Container

METRIC_TITLES = {
    "bpc": "bpc",
    "ppl": "ppl",
    "ppl_per_word": "ppl/word",
    "bits_per_byte": "bits/byte",
}


def bits(nats: float) -> float:
    """Convert nats to bits."""
    return nats / math.log(2)


def perplexity(mean_nats: float) -> float:
    """Return exp(nats), or infinity if it overflows."""
    try:
        return math.exp(mean_nats)
    except OverflowError:
        return math.inf


def finite(value: float) -> float | None:
    """Return the number, or None if it is infinite or not a number, which JSON cannot represent."""
    return value if math.isfinite(value) else None


def in_metric(mean_nats: float, metric: str) -> float:
    """Convert a mean loss to the metric of the corpus: "bpc" or "ppl"."""
    return bits(mean_nats) if metric == "bpc" else perplexity(mean_nats)


def measures(total_nats: float, *, tokens: int, words: int | None = None, size: int | None = None) -> dict[str, float]:
    """Compute all measures for which there are counts, by name: bpc, ppl, ppl_per_word, bits_per_byte.

    Counts are those of the text that the sum of losses covers: `words` are original words, with line ends counted as in
    the benchmark, and `size` is its bytes if all of them are scored; None if unknown.
    """
    mean = total_nats / tokens
    result = {"bpc": bits(mean), "ppl": perplexity(mean)}
    if words:
        result["ppl_per_word"] = perplexity(total_nats / words)
    if size:
        result["bits_per_byte"] = bits(total_nats) / size
    return result


def metric_of(unit: str) -> str:
    """Return the metric of a token unit, which may be given as the tokenizer.

    bpc is per character or byte, so the metric of words and pieces is perplexity.
    """
    return "bpc" if unit in ("byte", "char") else "ppl"


def wanted_measures(unit: str, available: Container[str]) -> list[str]:
    """Return the measures to show for a token unit, its metric first.

    Pieces have the measures that are comparable between tokenizers. Characters have no bits per byte: the first one has
    no context and is not scored, so some bytes never are.
    """
    names_by_unit = {"byte": ["bpc", "ppl"], "char": ["bpc", "ppl"], "word": ["ppl"]}
    names = names_by_unit.get(unit, ["ppl", "ppl_per_word", "bits_per_byte"])
    return [name for name in names if name in available]


SHORTENED_FROM = 1e7
"""Smallest measure that is written with an exponent, since more digits carry no information."""


def format_measure(value: float | None) -> str:
    """Format a loss or perplexity: 4.703, or 2.7e+10 from ten million on; None stands for infinity."""
    if value is None or value == math.inf:
        return "inf"
    if abs(value) >= SHORTENED_FROM:
        return f"{value:.1e}"
    return f"{value:.3f}"


def format_ratio(ratio: float | None) -> str:
    """Format a ratio: 363x, 4.2x, 0.35x; "-" for None."""
    if ratio is None:
        return "-"
    if ratio >= 10:
        return f"{ratio:,.0f}x"
    if ratio >= 1:
        return f"{ratio:.1f}x"
    return f"{ratio:.2f}x"
