"""Options of the jobs: values and combinations that are rejected, and how the texts of the command line are read."""

import math
import sys
from pathlib import Path

import pytest

from txlcli.errors import TxlError, UsageError
from txlcli.system.input_files import read_stdin
from txlcli.workflows.options import (
    FLOP_RATES,
    PROTOCOLS,
    RATES,
    SIZES,
    AttentionOptions,
    EvalOptions,
    GenerateOptions,
    ReclOptions,
    ReproduceOptions,
    TrainOptions,
    UserText,
    parse_distance,
    parse_lengths_or_auto,
    parse_list,
    parse_losses_path,
    parse_quantity,
    read_user_text,
)

TEXT = UserText("a.txt", b"the fox", label="`text` a.txt")
STDIN = UserText("stdin", b"the fox", label="`text` -")
FILE = Path("result.h5")
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
        (EvalOptions, "attn_len", (0,), "at least 1"),
        (EvalOptions, "seg_len", 2**31, "at most 2147483647"),
        (GenerateOptions, "temperature", 0.0, "at least 0.001"),
        (GenerateOptions, "top_p", 0.0, "above 0"),
        (GenerateOptions, "top_k", -1, "at least 0"),
        (GenerateOptions, "tokens", 10**30, "at most 2147483647"),
        (AttentionOptions, "figure", (5, 4), "at least 5"),
        (ReclOptions, "top_r", (0.1, 1.5), "at most 1"),
        (ReclOptions, "top_r", (math.nan,), "at least 0"),
        (ReclOptions, "threshold", 0.0, "above 0"),
        *((ReclOptions, name, 0, "at least 1") for name in ("start", "step", "positions", "batch_size")),
        *((one, name, 0, "at least 1") for one, name in ((TrainOptions, "max_steps"), (ReproduceOptions, "seeds"))),
    ],
)
def test_values_out_of_range_are_rejected(options, name, value, bound):
    number = value[-1] if isinstance(value, tuple | list) else value
    assert rejection(options, **{name: value}) == f"`{name}` {number}: must be {bound}"


@pytest.mark.parametrize(
    ("options", "name", "value", "message"),
    [
        (EvalOptions, "split", "vaild", 'unknown split "vaild"; did you mean "valid"? (known: train, valid, test)'),
        (EvalOptions, "mem_len", "0,64", 'unknown mem_len "0,64" (known: auto)'),
        (EvalOptions, "max_distance", "off", 'unknown max_distance "off" (known: none)'),
        (ReclOptions, "split", "train", 'unknown split "train" (known: valid, test)'),
        (TrainOptions, "precision", "fp8", 'unknown precision "fp8" (known: fp32, tf32, bf16, fp16)'),
    ],
)
def test_unknown_words_are_rejected(options, name, value, message):
    assert rejection(options, **{name: value}) == message


MODEL_ALONE = "`protocols` compares the model at given lengths"
WINDOWS = "`attn_len` evaluates windows without memory"
ONE_LENGTH = "`cache` and `dynamic` take one memory length"
LOSSES = "`losses` are those of the model alone"
FIGURE_6 = "only Figure 6 shows selected heads"


@pytest.mark.parametrize(
    ("options", "because", "given"),
    [
        (EvalOptions, "`text` is scored instead of a split", {"text": TEXT, "split": "test"}),
        (EvalOptions, "`stride` is the number of tokens predicted per window of `attn_len`", {"stride": 2}),
        *((EvalOptions, WINDOWS, {"attn_len": (7,)} | other) for other in ({"mem_len": (5,)}, {"seg_len": 5})),
        (EvalOptions, WINDOWS, {"attn_len": (7,), "same_length": True}),
        (EvalOptions, WINDOWS, {"attn_len": "auto", "mem_len": "auto"}),
        (EvalOptions, ONE_LENGTH, {"dynamic": True, "attn_len": (5,)}),
        (EvalOptions, ONE_LENGTH, {"cache": 9, "plot": FILE}),
        (EvalOptions, LOSSES, {"losses": FILE, "dynamic": True}),
        (EvalOptions, LOSSES, {"losses": FILE, "protocols": PROTOCOLS}),
        *(
            (EvalOptions, MODEL_ALONE, {"protocols": PROTOCOLS} | other)
            for other in ({"cache": 3}, {"dynamic": True}, {"plot": FILE})
        ),
        *((EvalOptions, MODEL_ALONE, {"protocols": PROTOCOLS, name: "auto"}) for name in ("mem_len", "attn_len")),
        (EvalOptions, "recurrence is not among the `protocols`", {"protocols": ("sliding",), "same_length": False}),
        (EvalOptions, "recurrence has no windows", {"protocols": ("recurrence",), "attn_len": (5,)}),
        (EvalOptions, "strided is not among the `protocols`", {"protocols": ("disjoint",), "stride": 2}),
        *(
            (GenerateOptions, "`prompt` is the whole context", {"prompt": "a"} | other)
            for other in ({"at": 3}, {"reference": True})
        ),
        *((GenerateOptions, "`greedy` does not sample", {"greedy": True, name: 3}) for name in ("top_k", "samples")),
        (AttentionOptions, "`heads` and `auto` both select heads", {"heads": HEADS, "auto": 2}),
        *((AttentionOptions, FIGURE_6, {"figure": (5, 7), name: 2}) for name in ("auto", "at")),
        (AttentionOptions, FIGURE_6, {"figure": (5, 7), "heads": HEADS}),
        *(
            (TrainOptions, "`resume` continues a run", {"resume": "byte"} | other)
            for other in ({"name": "x"}, {"force": True})
        ),
    ],
)
def test_options_that_exclude_each_other_are_rejected(options, because, given):
    assert rejection(options, **given) == f"{because}; leave out `{list(given)[-1]}`"


@pytest.mark.parametrize(
    ("options", "given", "message"),
    [
        (EvalOptions, {"attn_len": ()}, "`attn_len` is empty; give at least one number, or leave it out"),
        (EvalOptions, {"attn_len": (9, 7), "stride": 8}, "`stride` 8 exceeds the window length 7; give at most that"),
        *(
            (EvalOptions, {"cache": 9, "mem_len": lengths}, "`cache` and `dynamic` take one `mem_len`, which is not")
            for lengths in ((0, 5), "auto")
        ),
        (EvalOptions, {"protocols": PROTOCOLS, "mem_len": (5, 0)}, "`mem_len` 0: `protocols` compare a memory with"),
        (EvalOptions, {"protocols": ("disjont",)}, 'unknown protocol "disjont"; did you mean "disjoint"? (known: '),
        *(
            (AttentionOptions, heads, "Figure 6 has room for 24 heads; select fewer with `heads` or `auto`")
            for heads in ({"auto": 25}, {"heads": HEADS * 25})
        ),
        (ReclOptions, {"start": 3, "step": 4, "longest": 6}, "`longest` 6: give at least `start` + `step`, 7"),
        *(
            (TrainOptions, {"name": name}, f'`name` "{name}" is not a plain name; use letters, digits, ".", "-" and')
            for name in ("a/b", "../elsewhere", "", ".hidden")
        ),
    ],
)
def test_other_values_and_combinations_are_rejected(options, given, message):
    assert rejection(options, **given).startswith(message)


def test_processes_that_cannot_share_the_work_are_rejected():
    for name, value in (("dynamic", True), ("cache", 9)):
        message = rejection(EvalOptions(**{name: value}).check_processes, 2)
        assert message == f"several processes evaluate the model alone; leave out `{name}`"
    options = EvalOptions(text=STDIN)
    options.check_processes(1)
    message = rejection(options.check_processes, 2)
    assert message == "`text` -: several processes cannot share stdin; give a file instead"


def test_protocols_come_in_the_order_of_the_table_and_once():
    assert EvalOptions(protocols=("sliding", "disjoint", "sliding")).protocols == ("disjoint", "sliding")
    assert EvalOptions(mem_len=[5, 7]).mem_len == (5, 7)


def test_texts_of_the_command_line_are_parsed(tmp_path):
    assert parse_list("640,0,160,640", "") == (640, 0, 160)
    assert parse_list("90.5,5,5", "", item=float, unique=False) == (90.5, 5.0, 5.0)
    assert parse_lengths_or_auto("5,0,5", "") == (5, 0)
    assert parse_lengths_or_auto("auto", "") == "auto"
    assert [parse_distance(text, "") for text in ("7", "none", "off")] == [7, "none", "none"]
    assert parse_losses_path(str(tmp_path / "new.h5"), "") == tmp_path / "new.h5"
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfthe \xff")  # begins with a byte order mark
    text = read_user_text(str(tmp_path / "a.txt"), "`text` a.txt")
    assert (text.name, text.data, text.label) == (str(tmp_path / "a.txt"), b"the \xff", "`text` a.txt")


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        (parse_list, "7;9", "O: write whole numbers like 160,640"),
        *(
            (parse_lengths_or_auto, text, "O: write whole numbers like 160,640, or auto")
            for text in ("long", "1.5", "", "0,auto")
        ),
        *((parse_distance, text, 'O: give a whole number, or "none"') for text in ("far", "²")),
        (read_user_text, "nowhere.txt", "O: cannot be read (No such file or directory); check the path"),
        (read_user_text, ".", "O: cannot be read (Is a directory); check the path"),
        (parse_losses_path, "no/losses.h5", "O: there is no folder no; make it first"),
    ],
)
def test_texts_that_cannot_be_parsed_are_rejected(parse, text, message):
    assert rejection(parse, text, "O") == message


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
    with pytest.raises(UsageError) as caught:
        parse_quantity(text, f"`x` {text}", units=units)
    expected = f"`x` {text}: write a number above 0, a prefix such as G or Gi, and {' or '.join(units)}"
    assert str(caught.value) == expected


def test_a_closed_stdin_is_rejected(monkeypatch):
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(UsageError, match=r"^-: stdin is closed; send the text there, or name a file$"):
        read_stdin(7)
