"""The message of an error that a call must raise."""

import pytest


def rejection(error, function, *arguments, **options):
    """Return the message of the error that a call raises, which must be one line."""
    with pytest.raises(error) as caught:
        function(*arguments, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message
