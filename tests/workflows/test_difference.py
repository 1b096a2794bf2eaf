"""The confidence interval of a difference between losses."""

import numpy as np
import pytest

from txlcli.workflows.difference import mean_interval


@pytest.mark.parametrize("tokens", [20_011, 200_003])
def test_the_interval_of_independent_differences_is_that_of_the_normal_distribution(tokens):
    differences = np.random.default_rng(3).normal(0.25, 2.0, tokens)
    low, high = mean_interval(differences)
    half = 1.96 * differences.std() / np.sqrt(tokens)
    assert low == pytest.approx(differences.mean() - half, abs=0.15 * half)
    assert high == pytest.approx(differences.mean() + half, abs=0.15 * half)


def test_the_interval_of_few_blocks_is_that_of_students_distribution():
    blocks = np.random.default_rng(11).normal(0.25, 2.0, 20)
    low, high = mean_interval(np.repeat(blocks, 100))
    half = 2.093 * blocks.std(ddof=1) / np.sqrt(20)  # the quantile 0.975 for 19 degrees of freedom
    assert high - low == pytest.approx(2 * half, rel=0.03)


def test_neighbouring_tokens_that_agree_widen_the_interval():
    pieces = np.random.default_rng(5).normal(0.0, 1.0, 997)
    low, high = mean_interval(np.repeat(pieces, 50))
    half = 1.96 * pieces.std() / np.sqrt(len(pieces))  # of independent pieces, not of 50 times as many tokens
    assert high - low == pytest.approx(2 * half, rel=0.2)


def test_the_interval_contains_the_true_mean_in_most_samples():
    generator = np.random.default_rng(7)
    intervals = [mean_interval(generator.normal(0.1, 1.0, 4_001)) for _ in range(100)]
    assert 0.9 <= np.mean([low <= 0.1 <= high for low, high in intervals]) <= 0.99
