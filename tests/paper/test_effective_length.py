"""The search of the length beyond which more context gains next to nothing."""

import math

import pytest

from txlcli.paper.effective_length import THRESHOLD, find, relative_gain


def ends_at(reach, gain=0.01):
    """A loss that falls with each token up to `reach` and is flat beyond."""
    asked = []

    def loss_at(length):
        asked.append(length)
        return 3.0 - gain * min(length, reach)

    return loss_at, asked


def test_the_gain_is_the_relative_reduction_of_perplexity():
    assert relative_gain(math.log(20), math.log(19)) == pytest.approx(0.05)
    assert relative_gain(math.log(20), math.log(21)) == pytest.approx(-0.05)


@pytest.mark.parametrize("reach", [1, 7, 8, 9, 20, 64, 100, 128, 200])
def test_the_search_returns_the_first_step_beyond_which_nothing_is_gained(reach):
    loss_at, asked = ends_at(reach)
    found = find(loss_at, least=0, step=4, longest=10_000)
    assert found.length == math.ceil(reach / 4) * 4
    assert found.ended
    assert len(asked) == len(set(asked))  # each length is scored once
    assert found.tried == {length: loss_at(length) for length in sorted(set(asked))}


def test_without_any_gain_the_search_returns_the_least_length():
    assert find(ends_at(0)[0], least=0, step=4, longest=10_000).length == 0
    assert find(ends_at(0)[0], least=4, step=4, longest=10_000).length == 4


def test_gains_below_the_threshold_do_not_count():
    just = -math.log1p(-THRESHOLD)  # nats whose relative gain is the threshold
    for share, length in ((0.9, 0), (1.1, 1)):
        losses = {0: 1.0, 1: 1.0 - share * just}
        assert find(lambda one, losses=losses: losses.get(one, losses[1]), least=0, step=1, longest=50).length == length


def test_small_gains_are_added_up():
    # Every token gains less than the threshold; all of them together gain far more than it.
    found = find(ends_at(40, gain=0.8 * THRESHOLD)[0], least=0, step=1, longest=10_000)
    assert 38 <= found.length <= 40


def test_one_doubling_without_gain_does_not_end_the_search():
    losses = {0: 3.0, 4: 2.9, 8: 2.9, 16: 2.5}
    found = find(lambda length: losses.get(length, 2.5 if length > 8 else 2.9), least=0, step=4, longest=10_000)
    assert found.length == 12


def test_the_search_reports_gains_at_the_longest_length():
    found = find(ends_at(10_000)[0], least=0, step=4, longest=100)
    assert (found.length, found.ended) == (100, False)


@pytest.mark.parametrize(("longest", "step"), [(20, 1), (100, 6), (172, 10), (7, 7), (3, 5)])
def test_the_longest_length_is_tried_for_any_step(longest, step):
    found = find(ends_at(10_000)[0], least=0, step=step, longest=longest)
    assert (found.length, max(found.tried), found.ended) == (longest, longest, False)


def test_lengths_that_increase_the_loss_are_not_chosen():
    found = find(lambda length: 2.0 + abs(length - 16) / 100, least=0, step=4, longest=10_000)
    assert found.length == 16
