"""Tests of typed values in parsed JSON."""

import pytest

from txlcli.system.plain_json import value_of


@pytest.mark.parametrize(
    ("value", "kind"), [(3, int), (2.5, float), ("x", str), (True, bool), ([1], list), ({"a": 1}, dict)]
)
def test_a_value_of_the_type_is_returned(value, kind):
    assert value_of({"key": value}, "key", kind) is value


def test_a_whole_number_may_stand_for_a_float():
    value = value_of({"key": 3}, "key", float)
    assert (value, type(value)) == (3.0, float)


@pytest.mark.parametrize(
    ("value", "kind", "error"),
    [
        (2.0, int, "key is 2.0, not a value of type int"),
        (True, int, "key is true, not a value of type int"),
        (True, float, "key is true, not a value of type float"),
        (float("nan"), float, "key is NaN, not a value of type float"),
        (float("inf"), float, "key is Infinity, not a value of type float"),
        (None, str, "key is null, not a value of type str"),
        ({}, list, "key is {}, not a value of type list"),
        ("x" * 99, int, 'key is "' + "x" * 39 + "..., not a value of type int"),
    ],
)
def test_a_value_of_another_type_is_rejected(value, kind, error):
    with pytest.raises(ValueError, match="key is ") as caught:
        value_of({"key": value}, "key", kind)
    assert str(caught.value) == error


def test_a_missing_value_is_rejected():
    with pytest.raises(ValueError, match="key is missing"):
        value_of({}, "key", int)
