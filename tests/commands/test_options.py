"""Options that several commands share."""

import sys

import pytest

from txlcli.commands.options import parse_hardware
from txlcli.errors import UsageError
from txlcli.system.input_files import read_stdin
from txlcli.workflows.options import parse_lengths


def test_lengths_are_parsed_in_order_without_duplicates():
    assert parse_lengths("640,0,160,640", "") == (640, 0, 160)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("80GiB", "300GB/s", "989TFLOP/s"), (80 * 2**30, 3e11, 9.89e14)),
        (("1.5 TB", "200Gbit/s", "2PFLOPS"), (1.5e12, 2.5e10, 2e15)),
        (("512MiB", "64GiB/s", "9.89e14FLOP/s"), (2**29, 2**36, 9.89e14)),
        ((None, None, None), (None, None, None)),
    ],
)
def test_sizes_and_rates_of_a_gpu_are_parsed_with_their_units(given, expected):
    assert tuple(parse_hardware(*given).values()) == expected


def test_a_closed_stdin_is_refused(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^-: stdin is closed; send the text there, or name a file$"):
        read_stdin(7)
