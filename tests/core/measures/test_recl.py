"""Relative Effective Context Length, worked with a pencil (Appendix C)."""

import math

import numpy as np
import pytest

from txlcli.core.measures.recl import gain, gains, hardest_positions, recl, relative_loss

# Two models, context lengths 10, 20, 30, five positions; losses in nats.
FIRST = [[4.0, 1.0, 3.0, 2.0, 5.0], [3.0, 2.0, 1.0, 2.0, 6.0], [3.0, 1.0, 1.0, 0.5, 4.0]]
SECOND = [[5.0, 0.5, 2.0, 2.5, 4.5], [5.0, 0.5, 3.0, 2.5, 4.0], [2.5, 0.5, 3.0, 2.5, 4.0]]
LOSSES = np.array([FIRST, SECOND])
CONTEXTS = [10, 20, 30]


def test_the_baseline_is_the_least_loss_of_the_group_at_each_position():
    for of_model in gains(LOSSES, CONTEXTS, 1.0):
        means = [sum((4.0, 0.5, 2.0, 2.0, 4.5)) / 5, sum((3.0, 0.5, 1.0, 2.0, 4.0)) / 5]
        assert [gain.baseline_nats for gain in of_model] == pytest.approx(means)


@pytest.mark.parametrize(
    ("top_r", "chosen"),
    [
        (0.2, [4]),
        (0.4, [0, 4]),
        (0.6, [0, 2, 4]),  # positions 2 and 3 are as hard: the earlier one
        (0.01, [4]),  # never none
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_the_hardest_positions_are_those_of_the_largest_baseline(top_r, chosen):
    assert hardest_positions(np.array([4.0, 0.5, 2.0, 2.0, 4.5]), top_r).tolist() == chosen
    assert len(hardest_positions(np.arange(30.0), 0.1)) == 3  # 0.1 * 30 is a little more than 3 in binary


def test_only_losses_below_the_baseline_count_as_gains():
    baseline = np.array([4.0, 0.5, 2.0, 2.0, 4.5])
    # min(4, 3), min(2, 1), min(4.5, 6)
    assert relative_loss(baseline, np.array(FIRST[1]), np.array([0, 2, 4])) == pytest.approx((3.0 + 1.0 + 4.5) / 3)


def test_the_relative_gain_is_worked_on_positions_chosen_anew_at_each_context():
    first, second = gains(LOSSES, CONTEXTS, 0.4)
    # At 10 the hardest are 0 and 4: b = 4, 4.5. The first model has 3, 6 at 20, the second 5, 4.
    assert first[0] == gain((10, 20), 4.25, 3.75)
    assert second[0] == gain((10, 20), 4.25, 4.0)
    # At 20 they are 0 and 4 with b = 3, 4; at 30 the models have 3, 4 and 2.5, 4.
    assert first[1] == gain((20, 30), 3.5, 3.5)
    assert second[1] == gain((20, 30), 3.5, 3.25)
    assert first[0].relative_gain == pytest.approx((math.exp(4.25) - math.exp(3.75)) / math.exp(4.25))
    assert first[0].ppl_gain == pytest.approx(math.exp(4.25) - math.exp(3.75))


def steps(*relative):
    """Gains of 100 tokens each."""
    return [gain((100 * n, 100 * n + 100), 3.0, 3.0 + math.log1p(-each)) for n, each in enumerate(relative, 1)]


@pytest.mark.parametrize(
    ("relative", "threshold", "length", "ended"),
    [
        ([0.2, 0.05, 0.009, 0.5], 0.01, 300, False),  # it stops there, whatever comes later
        ([0.009, 0.5], 0.01, 100, False),
        ([0.2, 0.05, 0.011], 0.01, 400, True),
        ([0.2, 0.05, 0.011], 0.02, 300, False),
        ([0.0], 0.01, 100, False),
    ],
)
def test_recl_is_the_context_where_the_gain_first_stays_below_the_threshold(relative, threshold, length, ended):
    result = recl(steps(*relative), top_r=0.1, threshold=threshold)
    assert (result.recl_tokens, result.grid_ended) == (length, ended)
    step = gain((100, 200), 1.0, 1.0 + math.log(0.5))
    assert recl([step], top_r=0.1, threshold=step.relative_gain).grid_ended  # exactly the threshold


def test_losses_too_large_for_a_perplexity_still_have_a_relative_gain():
    step = gain((100, 200), 900.0, 899.0)
    assert step.relative_gain == pytest.approx(1 - math.exp(-1))
    assert step.ppl_gain == math.inf
