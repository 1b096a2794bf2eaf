"""Options of the jobs: values and combinations that are rejected, and how the texts of the command line are read."""

import math
from pathlib import Path

import numpy as np
import pytest

from txlcli.errors import TxlError, UsageError
from txlcli.workflows.attention_options import AttentionOptions
from txlcli.workflows.evaluation.options import PROTOCOLS, EvalOptions
from txlcli.workflows.exchange.options import ImportOptions
from txlcli.workflows.generate_options import GenerateOptions
from txlcli.workflows.options import parse as parse_option
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.recl_options import ReclOptions
from txlcli.workflows.speed_options import SpeedOptions
from txlcli.workflows.training.options import LaunchOptions, ScaleOptions, TrainOptions
from txlcli.workflows.user_text import UserText

TEXT = UserText("a.txt", b"the fox", label="`text` a.txt")
STDIN = UserText.of_option("-")
FILE, FIGURE = Path("result.h5"), Path("result.png")
HEADS = ((1, 1),)


def rejection(function, *arguments, **options):
    with pytest.raises(TxlError) as caught:
        function(*arguments, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "name", "value", "bound"),
    [
        (EvalOptions, "mem_len", (5, -1), "at least 0"),
        (EvalOptions, "seg_len", 2**31, "at most 2147483647"),
        (GenerateOptions, "temperature", 0.0, "at least 0.001 and at most 1000.0"),
        (GenerateOptions, "top_p", 0.0, "greater than 0 and at most 1"),
        (ReclOptions, "top_r", (0.1, 1.5), "at most 1"),
        (ReclOptions, "top_r", (math.nan,), "greater than 0 and at most 1"),
        (EvalOptions, "temperature", 0.0, "greater than 0 and at most 100"),
        *((PrepareOptions, "split", (90, 5, value), "at least 0") for value in (-5, math.nan)),
        (PrepareOptions, "vocab_size", 1, "at least 2"),
        (TrainOptions, "max_steps", 0, "at least 1"),
        (EvalOptions, "split", "vaild", "one of train, valid, test"),
        (EvalOptions, "mem_len", "0,64", "a list of whole numbers or auto"),
        (EvalOptions, "max_distance", "off", "a whole number or none"),
        (ReclOptions, "split", "train", "one of valid, test"),
        (TrainOptions, "precision", "fp8", "one of fp32, tf32, bf16, fp16"),
    ],
)
def test_values_out_of_range_and_unknown_words_are_rejected(options, name, value, bound):
    number = value[-1] if isinstance(value, tuple | list) else value
    assert rejection(options, **{name: value}).startswith(f"`{name}` must be {bound}, not {number!r}")


PAGE, EVERY = Path("a.html"), {"protocols": PROTOCOLS}
RESET = {"reset_at_documents": True}


@pytest.mark.parametrize(
    ("options", "given", "excluded", "reason"),
    [
        (EvalOptions, {"dynamic": True}, {"attn_len": (5,)}, "one memory length"),
        (EvalOptions, {"cache": 9}, {"plot": FIGURE}, "one memory length"),
        (EvalOptions, RESET, {"text": (TEXT,)}, "documents of a split"),
        (EvalOptions, {"text": (TEXT,)}, {"split": "test"}, "instead of a split"),
        (EvalOptions, {"losses": FILE}, {"cache": 9}, "the model alone"),
        (EvalOptions, {"html": PAGE}, {"attn_len": (3,)}, "the model and its memory"),
        (EvalOptions, {"html": PAGE}, {"cache": 9}, "the model alone"),
        (EvalOptions, {"dynamic": True}, {"compile": "on"}, "compile nothing"),
        (EvalOptions, RESET, {"compile": "on"}, "compile nothing"),
        (EvalOptions, EVERY, {"cache": 3}, "given lengths"),
        (EvalOptions, {"protocols": ("disjoint",)}, {"stride": 2}, "strided is not among"),
        (EvalOptions, {"protocols": ("sliding",)}, {"mem_len": (5,)}, "recurrence is not among"),
        (EvalOptions, {"protocols": ("recurrence",)}, {"attn_len": (5,)}, "recurrence has no windows"),
        (EvalOptions, {}, {"stride": 2}, "per window"),
        (EvalOptions, {"attn_len": (7,)}, {"mem_len": (5,)}, "without memory"),
        (EvalOptions, {"attn_len": "auto"}, {"mem_len": "auto"}, "without memory"),
        (GenerateOptions, {"prompt": "a"}, {"at": 3}, "whole context"),
        (GenerateOptions, {"greedy": True}, {"top_k": 3}, "does not sample"),
        (PrepareOptions, {"vocab": FILE}, {"tokenizer": "byte"}, "decides"),
        (TrainOptions, {"resume": "byte"}, {"name": "x"}, "continues a run"),
        (LaunchOptions, {"seeds": 2}, {"processes": 2}, "one process"),
    ],
)
def test_options_that_exclude_each_other_are_rejected(options, given, excluded, reason):
    message = rejection(options, **given, **excluded)
    (name,) = excluded
    assert reason in message
    assert message.endswith(f"; leave out `{name}`")


@pytest.mark.parametrize(
    ("options", "given", "telling"),
    [
        (EvalOptions, {"attn_len": ()}, "empty"),
        *(
            (EvalOptions, {other: value, name: "auto"}, f"`{other}` does not search")
            for other, value in (EVERY | RESET | {"cache": 9, "dynamic": True}).items()
            for name in ("mem_len", "attn_len")
        ),
        (EvalOptions, {"losses": Path("no/losses.h5")}, "is missing"),
        (EvalOptions, {"html": Path("page.txt")}, ".html"),
        (EvalOptions, {"attn_len": (9, 7), "stride": 8}, "exceeds"),
        (EvalOptions, {"cache": 9, "mem_len": (0, 5)}, "one `mem_len`"),
        (EvalOptions, {"protocols": PROTOCOLS, "mem_len": (5, 0)}, "`mem_len` 0"),
        (EvalOptions, {"protocols": ("disjont",)}, '"disjoint"'),
        (AttentionOptions, {"heads": HEADS * 25}, "24 heads"),
        (ReclOptions, {"start": 3, "step": 4, "longest": 6}, "at least"),
        *((PrepareOptions, {"split": shares}, "sum to 100") for shares in ((90, 5), (90, 5, 6), (0, 50, 50))),
        *((TrainOptions, {"name": name}, "plain name") for name in ("a/b", "../elsewhere", "", ".hidden")),
    ],
)
def test_other_values_and_combinations_are_rejected(options, given, telling):
    assert telling in rejection(options, **given)


def test_processes_that_cannot_share_the_work_are_rejected():
    for name, value in (("dynamic", True), ("cache", 9), ("reset_at_documents", True), ("html", Path("a.html"))):
        message = rejection(EvalOptions(**{name: value}).check_run, 2, 2)
        assert f"leave out `{name}`" in message
    options = EvalOptions(text=(STDIN,))
    options.check_run(1, 1)
    message = rejection(options.check_run, 2, 2)
    assert "cannot share stdin" in message


def test_more_processes_than_lanes_are_rejected_before_they_start():
    assert "there are 2" in rejection(EvalOptions().check_run, 3, 2)
    assert "there are 1" in rejection(EvalOptions(batch_size=1).check_run, 2, 8)
    EvalOptions(batch_size=3).check_run(3, 1)
    EvalOptions(attn_len=(5,)).check_run(3, 1)  # windows are divided


@pytest.mark.parametrize("make", [TrainOptions, ScaleOptions, SpeedOptions, ImportOptions])
def test_a_setting_that_is_given_twice_is_rejected(make):
    with pytest.raises(UsageError, match=r"^train\.lr is given twice"):
        make(overrides=("train.lr=1", "train.lr = 2"))


def test_lists_and_numbers_of_numpy_are_accepted():
    options = EvalOptions(mem_len=[np.int64(5), np.uint8(7)], positions=np.int32(11))
    assert (options.mem_len, options.positions) == ((5, 7), 11)
    assert {type(number) for number in (*options.mem_len, options.positions)} == {int}
    sampled = GenerateOptions(temperature=np.float64(0.5), top_p=np.float32(0.25))
    assert (sampled.temperature, sampled.top_p) == (0.5, 0.25)
    assert {type(number) for number in (sampled.temperature, sampled.top_p)} == {float}


def parse(options, name, text):
    return parse_option(options.__dataclass_fields__[name], text)


GPU = ("device_memory", "bandwidth", "device_flops")


@pytest.mark.parametrize(
    ("options", "name", "text", "value"),
    [
        (ReclOptions, "top_r", "0.5,0.1,0.50", (0.5, 0.1)),
        (PrepareOptions, "split", "90,5,5", (90.0, 5.0, 5.0)),
        (EvalOptions, "mem_len", "640,0,160,640", (640, 0, 160)),
        (EvalOptions, "mem_len", "auto", "auto"),
        (EvalOptions, "max_distance", "7", 7),
        (EvalOptions, "max_distance", "none", "none"),
        (ScaleOptions, "device_memory", "80GiB", 80 * 2**30),
        (ScaleOptions, "bandwidth", "300GB/s", 3e11),
        (ScaleOptions, "device_memory", "1.5 TB", 1.5e12),
        (ScaleOptions, "device_memory", "512MiB", 2**29),
        (ScaleOptions, "bandwidth", "64GiB/s", 2**36),
        (ScaleOptions, "device_flops", "989TFLOP/s", 9.89e14),
        (ScaleOptions, "device_flops", "2PFLOP/s", 2e15),
    ],
)
def test_texts_of_the_command_line_are_parsed(options, name, text, value):
    assert parse(options, name, text) == value


LENGTHS = "whole numbers like 160,640, or auto"


@pytest.mark.parametrize(
    ("options", "name", "text", "example"),
    [
        (ReclOptions, "top_r", "7;9", "numbers like 0.1,0.5"),
        *((EvalOptions, "mem_len", text, LENGTHS) for text in ("long", "1.5", "", "0,auto")),
        *((EvalOptions, "max_distance", text, "a whole number, or none") for text in ("far", "²")),
        *(
            (ScaleOptions, name, text, f"a number above 0, a prefix such as G or Gi, and {units}")
            for name, units in zip(GPU, ("B", "B/s", "FLOP/s"), strict=True)
            for text in ("80", "much", "-1GiB", "0GiB", "0GB/s", "300Gb/s", "80 gib", "")
        ),
    ],
)
def test_texts_that_cannot_be_parsed_are_rejected_with_an_example(options, name, text, example):
    assert rejection(parse, options, name, text) == f"`{name}` {text}: write {example}"


def test_a_text_is_read_from_its_file_when_it_is_needed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"the \xff")
    assert UserText.of_option(str(tmp_path / "a.txt")).read().data == b"the \xff"
    for wrong, reason in (("nowhere.txt", "cannot be read"), (str(tmp_path), "is a folder")):
        assert reason in rejection(UserText.of_option(wrong).read)
