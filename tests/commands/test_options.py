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
    parse_lengths,
    parse_quantity,
)


def test_lengths_are_parsed_in_order_without_duplicates():
    assert parse_lengths("640,0,160,640", "") == (640, 0, 160)


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
    assert (
        tuple(parse_quantity(text, "", units=known, example="") for text, known in zip(given, units, strict=True))
        == expected
    )


@pytest.mark.parametrize("units", [SIZES, RATES, FLOP_RATES])
@pytest.mark.parametrize("text", ["80", "much", "-1GiB", "0GiB", "0GB/s", "1e999GB/s", "300Gb/s", "80 gib", ""])
def test_a_quantity_that_cannot_be_read_is_rejected_with_an_example(units, text):
    with pytest.raises(UsageError, match=rf"^`x` {text}: write a number above 0 and a unit, such as 80GiB"):
        parse_quantity(text, f"`x` {text}", units=units, example="80GiB")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"devices": 2}, "`devices` is an option of a forecast; add `dry_run`, or leave it out"),
        ({"bandwidth": 1e9}, "`bandwidth` is an option of a forecast; add `dry_run`, or leave it out"),
        ({"verbose": True}, "`verbose` is an option of a forecast; add `dry_run`, or leave it out"),
        (
            {"dry_run": True, "device_memory": 8e10},
            "`device_memory` describes the GPUs of a forecast; add their number with `devices`",
        ),
        (
            {"dry_run": True, "devices": 2, "verbose": True},
            "`verbose` compares the attention backends of this machine; leave it out with `devices`",
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
        ({"resume": "byte", "name": "x"}, "`resume` continues a run; leave out `name` and `force`"),
        ({"resume": "byte", "force": True}, "`resume` continues a run; leave out `name` and `force`"),
        ({"resume": "byte", "seed": 3}, "`seed` 3: a resumed run keeps its train.seed; start a new run instead"),
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


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_len": [0, -5]}, "`mem_len` -5: must be at least 0"),
        ({"attn_len": ()}, "`attn_len` is empty; give at least one number, or leave it out"),
    ],
)
def test_wrong_lengths_are_rejected_from_python_too(options, message):
    with pytest.raises(UsageError, match=f"^{re.escape(message)}$"):
        EvalOptions(**options)


def test_protocols_come_in_the_order_of_the_table_and_once():
    given = ("sliding", "disjoint", "sliding")
    assert EvalOptions(protocols=given).protocols == ("disjoint", "sliding")
    assert EvalOptions(mem_len=[5, 7]).mem_len == (5, 7)
