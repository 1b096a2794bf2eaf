"""What options that several commands share make of what the user gives."""

import sys

import pytest

from txlcli.errors import UsageError
from txlcli.options import parse_lengths, read_stdin


def test_lengths_come_once_each_in_the_order_given():
    assert parse_lengths("--mem-len", "640,0,160,640", least=0) == [640, 0, 160]


def test_a_closed_stdin_is_told(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^-: stdin is closed; send the text there, or name a file$"):
        read_stdin()
