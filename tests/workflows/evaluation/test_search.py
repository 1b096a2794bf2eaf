"""The search for the length beyond which more context gains almost nothing."""

import math

import pytest

from txlcli.workflows.evaluation.options import LENGTH_THRESHOLD
from txlcli.workflows.evaluation.search import find_length


def falling_to(reach, gain=0.01):
    """Return a loss that falls with each token up to `reach`, and the list of lengths that it was called with."""
    asked = []

    def loss_at(length):
        asked.append(length)
        return 3.0 - gain * min(length, reach)

    return loss_at, asked


@pytest.mark.parametrize("reach", [1, 7, 8, 9, 20, 64, 100, 128, 200])
def test_the_search_returns_the_first_step_beyond_which_nothing_is_gained(reach):
    loss_at, asked = falling_to(reach)
    result = find_length(loss_at, least=0, step=4, longest=10_000)
    assert result.length == math.ceil(reach / 4) * 4
    assert result.ended
    assert len(asked) == len(set(asked))  # each length is scored once
    assert result.tried == {length: loss_at(length) for length in sorted(set(asked))}


def test_without_any_gain_the_search_returns_the_least_length():
    assert find_length(falling_to(0)[0], least=0, step=4, longest=10_000).length == 0
    assert find_length(falling_to(0)[0], least=4, step=4, longest=10_000).length == 4


def test_gains_below_the_threshold_do_not_count():
    just = -math.log1p(-LENGTH_THRESHOLD)  # nats whose relative gain is the threshold
    for share, expected in ((0.9, 0), (1.1, 1)):
        losses = {0: 1.0, 1: 1.0 - share * just}
        result = find_length(lambda length, losses=losses: losses.get(length, losses[1]), least=0, step=1, longest=50)
        assert result.length == expected


def test_small_gains_are_added_up():
    # Every token gains less than the threshold; all of them together gain far more than it.
    result = find_length(falling_to(40, gain=0.8 * LENGTH_THRESHOLD)[0], least=0, step=1, longest=10_000)
    assert 38 <= result.length <= 40


def test_one_doubling_without_gain_does_not_end_the_search():
    losses = {0: 3.0, 4: 2.9, 8: 2.9, 16: 2.5}
    result = find_length(lambda length: losses.get(length, 2.5 if length > 8 else 2.9), least=0, step=4, longest=10_000)
    assert result.length == 12


@pytest.mark.parametrize(("longest", "step"), [(20, 1), (100, 6), (172, 10), (7, 7), (3, 5)])
def test_the_longest_length_is_tried_for_any_step(longest, step):
    result = find_length(falling_to(10_000)[0], least=0, step=step, longest=longest)
    assert (result.length, max(result.tried), result.ended) == (longest, longest, False)


def test_lengths_that_increase_the_loss_are_not_chosen():
    result = find_length(lambda length: 2.0 + abs(length - 16) / 100, least=0, step=4, longest=10_000)
    assert result.length == 16


def test_the_search_knows_that_gains_ended_before_the_longest_length():
    result = find_length(falling_to(48)[0], least=16, step=4, longest=64)
    assert max(result.tried) == 64
    assert (result.length, result.ended) == (48, True)
