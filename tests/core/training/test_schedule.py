"""The learning rate of every schedule against values computed by hand."""

import math

import pytest

from tests.core.training.test_optimizer import train_settings
from txlcli.core.training.schedule import reduced, scheduled_lr


def rates(steps, **changed):
    return [scheduled_lr(train_settings(**changed), step) for step in steps]


def test_the_factor_of_a_group_multiplies_the_peak_and_not_the_floor():
    settings = train_settings(min_lr_ratio=0.25, warmup_steps=10)
    assert [scheduled_lr(settings, step, 2.0) for step in (5, 51, 101)] == pytest.approx([0.8, 0.9, 0.2])
    mean = train_settings(min_lr_ratio=0.25, average="mean", average_from=50, average_lr_factor=0.5)
    last = [scheduled_lr(mean, 50, factor) for factor in (1.0, 2.0)]
    assert last[1] == pytest.approx(last[0], rel=0.01)
    assert scheduled_lr(mean, 60, 2.0) == 0.5 * last[1]


def test_the_step_of_a_share_is_rounded():
    settings = train_settings(average="mean", average_from=0.29, min_lr_ratio=0.25)
    assert settings.schedule_steps == 29


QUARTER = (1 + math.sqrt(0.5)) / 2
WARM_UP = {"warmup_steps": 20, "cosine_from": "warmup"}
SHARES = {  # of the rate at steps 10, 20, 21, 41, 61 and 101, with a warm-up of 20 steps
    # (s - 1 - 20) / 80 of a half turn: full rate at 21, a quarter at 41, the half at 61.
    "warmup": [0.5, 1.0, 1.0, QUARTER, 0.5, 0.0],
    # (s - 1) / 100: step 21 is already a fifth of a half turn down.
    "start": [0.5, 1.0, *((1 + math.cos(math.pi * done)) / 2 for done in (0.2, 0.4, 0.6, 1.0))],
}
RATES = {
    # Step number s has 1 + cos(pi (s - 1) / 100) over 2: s = 26 is a quarter, 51 the half, 101 would be the end.
    "cosine at its start, quarter, middle and end": ([1, 26, 51, 101], {}, [0.8, 0.8 * QUARTER, 0.4, 0.0]),
    "cosine includes the steps of the warm-up": ([51], {"warmup_steps": 10}, [0.4]),
    # From 0.8 to a tenth of it: in the middle 0.08 + 0.72 / 2.
    "cosine falls to its floor": ([1, 51, 101], {"min_lr_ratio": 0.1}, [0.8, 0.44, 0.08]),
    "cosine ends at a step of its own": ([26, 51, 100], {"cosine_until": 50, "min_lr_ratio": 0.25}, [0.5, 0.2, 0.2]),
    "a run of 7 steps only rises": ([1, 7], {**WARM_UP, "max_steps": 7}, [0.04, 0.28]),
    "a run that ends with its warm-up only rises": ([1, 20], {**WARM_UP, "max_steps": 20}, [0.04, 0.8]),
    "inverse sqrt halves when the steps quadruple": (
        [16, 17, 64, 1600],
        {"schedule": "inverse_sqrt", "warmup_steps": 16},
        [0.8, 0.8 * math.sqrt(16 / 17), 0.4, 0.08],
    ),
    "inverse sqrt without warm-up": ([4, 100], {"schedule": "inverse_sqrt"}, [0.4, 0.08]),
    "inverse sqrt stops at its floor": (
        [4, 100, 10_000],
        {"schedule": "inverse_sqrt", "min_lr_ratio": 0.25},
        [0.4, 0.2, 0.2],
    ),
    # The last fifth of 100 steps: 1 up to step 81, then 19/20 ... 1/20 at steps 82 ... 100.
    "wsd is constant, then falls linearly": (
        [4, 81, 82, 91, 100],
        {"schedule": "wsd", "warmup_steps": 8},
        [0.4, 0.8, 0.8 * 19 / 20, 0.4, 0.04],
    ),
    "wsd falls to its floor": ([91], {"schedule": "wsd", "min_lr_ratio": 0.5}, [0.6]),
    # The cosine has 60 steps: step 31 is the half. Step 60 is 59/60 of the half turn.
    "the schedule ends where the mean of the weights begins": (
        [31, 60, 61, 100],
        {"average": "mean", "average_from": 0.6, "average_lr_factor": 0.5, "min_lr_ratio": 0.25},
        [0.5, LAST := 0.8 * (0.25 + 0.75 * (1 + math.cos(math.pi * 59 / 60)) / 2), LAST / 2, LAST / 2],
    ),
    "the mean begins after a number of steps": (
        [10, 11],
        {"average": "mean", "average_from": 10, "average_lr_factor": 2.0, "schedule": "constant"},
        [0.8, 1.6],
    ),
    "constant does not change": ([1, 50, 10_000], {"schedule": "constant"}, [0.8] * 3),
    "plateau does not change by itself": ([1, 50, 10_000], {"schedule": "plateau"}, [0.8] * 3),
}


@pytest.mark.parametrize("schedule", ["cosine", "inverse_sqrt", "constant", "plateau", "wsd"])
def test_warm_up_rises_linearly_from_zero_and_without_it_the_first_step_has_the_full_rate(schedule):
    assert rates([1, 2, 5, 10], schedule=schedule, warmup_steps=10) == pytest.approx([0.08, 0.16, 0.4, 0.8])
    assert rates([1], schedule=schedule) == [0.8]


@pytest.mark.parametrize("fact", RATES)
def test_the_rate_follows_its_schedule(fact):
    steps, changed, expected = RATES[fact]
    assert rates(steps, **changed) == pytest.approx(expected)


@pytest.mark.parametrize("cosine_from", SHARES)
@pytest.mark.parametrize("floor", [0.0, 0.1])
def test_cosine_falls_from_the_start_or_from_the_end_of_the_warm_up(cosine_from, floor):
    given = rates([10, 20, 21, 41, 61, 101], cosine_from=cosine_from, warmup_steps=20, min_lr_ratio=floor)
    # The floor lifts the cosine, not the warm-up.
    shares = SHARES[cosine_from]
    expected = shares[:2] + [floor + (1 - floor) * share for share in shares[2:]]
    assert given == pytest.approx([0.8 * share for share in expected])


def reduced_rates(improvements, factor=1.0, **changed):
    """Return the share of the peak learning rate after each validation, of parameters whose peak has a factor."""
    settings, stale, scale, given = train_settings(schedule="plateau", **changed), 0, 1.0, []
    for improved in improvements:
        stale = 0 if improved else stale + 1
        scale = reduced(settings, scale, stale)
        given.append(scheduled_lr(settings, 50, factor, scale) / settings.lr)
    return given


@pytest.mark.parametrize(
    ("improvements", "changed", "expected"),
    [
        ([True, False, False, True, False], {}, [1, 0.5, 0.25, 0.25, 0.125]),
        # The patience is counted again after each better loss and each reduction.
        (
            [False, False, False, True, False, False, False, False],
            {"plateau_patience": 2, "plateau_factor": 0.1},
            [1, 1, 0.1, 0.1, 0.1, 0.1, 0.01, 0.01],
        ),
        ([False] * 4, {"min_lr_ratio": 0.2}, [0.5, 0.25, 0.2, 0.2]),
        ([False] * 4, {"min_lr_ratio": 0.2, "factor": 2.0}, [1, 0.5, 0.25, 0.2]),
        ([False] * 4, {"min_lr_ratio": 0.2, "factor": 0.6}, [0.3, 0.2, 0.2, 0.2]),
    ],
)
def test_plateau_reduces_the_rate_at_validations_without_a_better_loss(improvements, changed, expected):
    assert reduced_rates(improvements, **changed) == pytest.approx(expected)


def test_another_schedule_keeps_its_rate():
    assert reduced(train_settings(schedule="constant"), 1.0, stale=1) == 1.0
