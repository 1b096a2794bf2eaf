"""Options of `txl attention`, without PyTorch."""

from pathlib import Path
from typing import Literal

from txlcli.config.ranges import NaturalInt, PositiveInt, Seed
from txlcli.errors import UsageError
from txlcli.workflows.options import Options, Split, force_option, memory_option, option, seed_option

DEFAULT_QUERIES = 5_000
MAX_HEADS = 24
"""Heads that one figure has room for."""
Head = tuple[int, int]
"""(layer, head), both from 1."""


def read_heads(text: str) -> tuple[Head, ...]:
    """Read heads: `2.10,1.3` -> ((2, 10), (1, 3))."""
    heads: dict[Head, None] = {}
    for part in text.split(","):
        layer, head = part.split(".")
        heads[int(layer), int(head)] = None
    return tuple(heads)


class AttentionOptions(Options):
    """Options of `txl attention`."""

    heads: tuple[Head, ...] | None = option(
        "Heads of Figure 6, counted from 1.1 [default: those with the widest attention].",
        metavar="LAYER.HEAD,...",
        read=read_heads,
        example="layer.head, both from 1, like 2.3,5.1",
    )
    at: NaturalInt | None = option("First token of Figure 6 [default: random, by --seed].")
    positions: PositiveInt | None = option(f"Tokens to average over [default: {DEFAULT_QUERIES:,} at most].")
    split: Split = option("Split to measure on.", default="valid")
    mem_len: NaturalInt | None = memory_option()
    seg_len: PositiveInt | None = option("Segment length L [default: the recipe's].")
    out: Path | None = option("Folder of the figures [default: RUN/figures].", metavar="FOLDER")
    format: Literal["png", "svg", "pdf"] = option("File format of the figures.", default="png")
    force: bool = force_option()
    seed: Seed = seed_option()

    def _check(self) -> None:
        if self.heads is not None and len(self.heads) > MAX_HEADS:
            raise UsageError(f"Figure 6 has room for {MAX_HEADS} heads; select fewer with `heads`")
