"""Options that several commands share."""

import re
import sys

import pytest

from txlcli.errors import UsageError
from txlcli.system.input_files import read_stdin
from txlcli.workflows.options import (
    FLOP_RATES,
    RATES,
    SIZES,
    EvalOptions,
    ForecastOptions,
    TrainOptions,
    parse_list,
    parse_quantity,
)


def test_lists_are_parsed_in_order_without_duplicates():
    assert parse_list("640,0,160,640", "") == (640, 0, 160)
    assert parse_list("90.5,5,5", "", item=float, unique=False) == (90.5, 5.0, 5.0)
    with pytest.raises(UsageError, match=r"^`attn_len` 7;9: write whole numbers like 160,640$"):
        parse_list("7;9", "`attn_len` 7;9")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("80GiB", "300GB/s", "989TFLOP/s"), (80 * 2**30, 3e11, 9.89e14)),
        (("1.5 TB", "200Gbit/s", "2PFLOPS"), (1.5e12, 2.5e10, 2e15)),
        (("512MiB", "64GiB/s", "9.89e14FLOP/s"), (2**29, 2**36, 9.89e14)),
    ],
)
def test_sizes_and_rates_of_a_gpu_are_parsed_with_their_units(given, expected):
    units = (SIZES, RATES, FLOP_RATES)
    assert tuple(parse_quantity(text, "", units=known) for text, known in zip(given, units, strict=True)) == expected


@pytest.mark.parametrize("units", [SIZES, RATES, FLOP_RATES])
@pytest.mark.parametrize("text", ["80", "much", "-1GiB", "0GiB", "0GB/s", "1e999GB/s", "300Gb/s", "80 gib", ""])
def test_a_quantity_that_cannot_be_read_is_rejected_with_the_units(units, text):
    expected = rf"^`x` {text}: write a number above 0, a prefix such as G or Gi, and {' or '.join(units)}$"
    with pytest.raises(UsageError, match=expected):
        parse_quantity(text, f"`x` {text}", units=units)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "only `dry_run` makes a forecast; leave out `devices`"),
        ({"bandwidth": 1e9}, "only `dry_run` makes a forecast; leave out `bandwidth`"),
        ({"verbose": True}, "only `dry_run` makes a forecast; leave out `verbose`"),
        (
            {"dry_run": True, "device_memory": 8e10},
            "this describes the GPUs of a forecast for `devices`; leave out `device_memory`",
        ),
        (
            {"dry_run": True, "devices": 2, "verbose": True},
            "`verbose` compares the attention backends of this machine; leave out `verbose`",
        ),
    ],
)
def test_options_of_a_forecast_that_do_not_belong_together_are_rejected(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        ForecastOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(
            ({"name": name}, f'`name` "{name}" is not a plain name; use letters, digits, ".", "-" and "_"')
            for name in ("a/b", "../elsewhere", "", ".hidden")
        ),
        ({"resume": "byte", "name": "x"}, "`resume` continues a run; leave out `name`"),
        ({"resume": "byte", "force": True}, "`resume` continues a run; leave out `force`"),
        ({"max_steps": 0}, "`max_steps` 0: must be at least 1"),
        ({"max_minutes": -1.0}, "`max_minutes` -1.0: must be at least 0"),
        ({"log_every": 0}, "`log_every` 0: must be at least 1"),
    ],
)
def test_options_of_a_training_run_that_are_wrong_are_rejected(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        TrainOptions(**options)


def test_a_closed_stdin_is_rejected(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^-: stdin is closed; send the text there, or name a file$"):
        read_stdin(7)


def test_protocols_come_in_the_order_of_the_table_and_once():
    given = ("sliding", "disjoint", "sliding")
    assert EvalOptions(protocols=given).protocols == ("disjoint", "sliding")
    assert EvalOptions(mem_len=[5, 7]).mem_len == (5, 7)
