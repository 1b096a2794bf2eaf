"""Confidence interval of the difference between two losses on the same text."""

import numpy as np
from numpy.typing import NDArray

MAX_BLOCKS, BLOCK_TOKENS = 200, 100
"""Largest number of blocks that the text is divided into, and fewest tokens of a block."""
SAMPLES = 10_000


def mean_interval(differences: NDArray[np.floating], *, seed: int = 1111) -> tuple[float, float]:
    """Return the bounds between which 95 % of the means of resampled differences (T,) are.

    Losses of neighbouring tokens depend on each other, so contiguous blocks are drawn instead of tokens (Kunsch 1989).
    T is at least 2 * BLOCK_TOKENS.
    """
    count = min(MAX_BLOCKS, len(differences) // BLOCK_TOKENS)
    blocks = np.array_split(differences.astype(np.float64), count)
    sums, sizes = np.array([block.sum() for block in blocks]), np.array([len(block) for block in blocks])
    times_drawn = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=SAMPLES)
    low, high = np.percentile(times_drawn @ sums / (times_drawn @ sizes), (2.5, 97.5))
    return float(low), float(high)
