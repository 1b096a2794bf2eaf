"""Samples of long lists of cases: `pytest -m slow` runs the cases that a sample leaves out."""

import itertools

import pytest


def sampled(step, *axes):
    """Return all combinations of the axes for `parametrize`, all but one in `step` of them marked as slow.

    A combination is in the sample if the positions of its values add up to a multiple of `step`: with several axes, the
    sample has every value of each.
    """
    cases = []
    for places in itertools.product(*(list(enumerate(axis)) for axis in axes)):
        is_left_out = sum(position for position, _ in places) % step
        cases.append(pytest.param(*(value for _, value in places), marks=[pytest.mark.slow] if is_left_out else []))
    return cases
