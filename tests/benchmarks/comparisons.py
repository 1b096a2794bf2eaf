"""Precisions in which txl and the peer are compared, by device."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Comparison:
    ours: tuple[str, ...]
    """Precisions of txl."""
    peer: str
    """Precision of the peer that all of them are compared with."""


COMPARISONS = {
    "cpu": (Comparison(("fp32", "bf16"), "fp32"),),
    "cuda": tuple(Comparison((precision,), precision) for precision in ("fp32", "tf32", "bf16")),
}
