"""The forecast of a training as text."""

import pytest

from txlcli.commands.training_tables import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1.54, "1.5 seconds"),
        (150, "2.5 minutes"),
        (3 * 3600, "3.0 hours"),
        (5 * 86_400, "5.0 days"),
        (3000 * 365 * 86_400, "3,000.0 years"),
    ],
)
def test_a_duration_is_shown_in_the_largest_unit_that_it_has_two_of(seconds, text):
    assert duration(seconds) == text
