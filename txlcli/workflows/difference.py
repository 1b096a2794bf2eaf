"""Compares the losses of two evaluations of the same text, token by token."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from txlcli.data import loss_file
from txlcli.data.loss_file import Losses
from txlcli.errors import UsageError

MAX_BLOCKS = 200
"""Largest number of blocks that the text is divided into."""
BLOCK_TOKENS = 100
"""Fewest tokens of a block."""
MIN_TOKENS = 20 * BLOCK_TOKENS
SAMPLES = 10_000


@dataclass(frozen=True, kw_only=True)
class LossSource:
    """One of two evaluations: the one with the lowest loss of its file."""

    file: str
    run: str
    evaluation: str
    """mem_len_M or attn_len_N."""
    loss_nats: float
    """Mean over all tokens."""


@dataclass(frozen=True, kw_only=True)
class LossDifference:
    """Mean loss of the second evaluation minus that of the first, in nats per token."""

    first: LossSource
    second: LossSource
    tokens: int
    difference_nats: float
    low_nats: float
    """Bounds of the 95 % interval."""
    high_nats: float
    significant: bool
    """True if the interval does not contain 0: the difference is more than chance."""


def mean_interval(differences: NDArray[np.floating], *, seed: int = 1111) -> tuple[float, float]:
    """Return the bounds between which 95 % of the means of resampled differences (T,) are.

    Losses of neighbouring tokens depend on each other, so contiguous blocks are drawn instead of tokens (Kunsch 1989).
    T is at least 2 * BLOCK_TOKENS.
    """
    count = min(MAX_BLOCKS, len(differences) // BLOCK_TOKENS)
    blocks = np.array_split(differences.astype(np.float64), count)
    sums = np.array([block.sum() for block in blocks])
    sizes = np.array([len(block) for block in blocks])
    rng = np.random.default_rng(seed)
    times_drawn = rng.multinomial(count, np.full(count, 1 / count), size=SAMPLES)
    means = times_drawn @ sums / (times_drawn @ sizes)
    low, high = np.percentile(means, (2.5, 97.5))
    return float(low), float(high)


def run(first: Path, second: Path) -> LossDifference:
    """Compare the best evaluations of two files that `txl eval --losses` wrote."""
    first_file = loss_file.read(first)
    second_file = loss_file.read(second)
    if not np.array_equal(first_file.tokens, second_file.tokens):
        raise UsageError(f"{first} and {second} have losses of different tokens; evaluate both runs on the same text")
    if len(first_file.tokens) < MIN_TOKENS:
        raise UsageError(f"{first} has {len(first_file.tokens):,} tokens; evaluate at least {MIN_TOKENS:,}")
    first_source = _best_source(first, first_file)
    second_source = _best_source(second, second_file)
    first_losses = first_file.losses_nats[first_source.evaluation].astype(np.float64)
    second_losses = second_file.losses_nats[second_source.evaluation].astype(np.float64)
    differences = second_losses - first_losses
    low, high = mean_interval(differences)
    return LossDifference(
        first=first_source,
        second=second_source,
        tokens=len(differences),
        difference_nats=float(differences.mean()),
        low_nats=low,
        high_nats=high,
        significant=low > 0 or high < 0,
    )


def _best_source(path: Path, file: Losses) -> LossSource:
    """Return the evaluation of a file with the lowest mean loss."""
    means = {name: float(losses.mean(dtype=np.float64)) for name, losses in file.losses_nats.items()}
    best = min(means, key=means.__getitem__)
    return LossSource(file=str(path), run=file.run, evaluation=best, loss_nats=means[best])
