"""Options that several commands share."""

import sys

import pytest

from txlcli.errors import UsageError
from txlcli.options import parse_lengths, read_stdin


def test_lengths_are_parsed_in_order_without_duplicates():
    assert parse_lengths("--mem-len", "640,0,160,640", least=0) == [640, 0, 160]


def test_a_closed_stdin_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^-: stdin is closed; send the text there, or name a file$"):
        read_stdin(7)
