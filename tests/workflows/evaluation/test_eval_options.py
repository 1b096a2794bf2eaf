"""Options of an evaluation: values and combinations that are rejected, and how the command line's texts are read."""

from pathlib import Path

import pytest

from txlcli.errors import TxlError
from txlcli.workflows.options import (
    PROTOCOLS,
    EvalOptions,
    UserText,
    parse_distance,
    parse_lengths_or_auto,
    parse_losses_path,
    read_user_text,
)

TEXT = UserText("a.txt", b"the fox", label="`text` a.txt")
STDIN = UserText("stdin", b"the fox", label="`text` -")
ALONE = "`protocols` compares the model at given lengths; leave out"
WINDOWS = "`attn_len` evaluates windows without memory; leave out"
ONE_LENGTH = "`cache` and `dynamic` take one"
LOSSES = "`losses` are those of the model alone; leave out"
FILE = Path("result.h5")


def rejection(function, *arguments, **options):
    with pytest.raises(TxlError) as caught:
        function(*arguments, **options)
    assert caught.value.exit_code == 2
    return str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mem_len": (5, -1)}, "`mem_len` -1: must be at least 0"),
        ({"attn_len": (0,)}, "`attn_len` 0: must be at least 1"),
        ({"positions": 0}, "`positions` 0: must be at least 1"),
        ({"seg_len": 2**31}, "`seg_len` 2147483648: must be at most 2147483647"),
        ({"attn_len": "auto", "stride": 2**31}, "`stride` 2147483648: must be at most 2147483647"),
        ({"mem_len": [0, -5]}, "`mem_len` -5: must be at least 0"),
        ({"attn_len": ()}, "`attn_len` is empty; give at least one number, or leave it out"),
        ({"split": "test", "text": TEXT}, "`text` is scored instead of a split; leave out `split`"),
        ({"stride": 2}, "`stride` is the number of tokens predicted per window of `attn_len`; leave out `stride`"),
        ({"attn_len": (9, 7), "stride": 8}, "`stride` 8 exceeds the window length 7; give at most that"),
        ({"attn_len": (7,), "mem_len": (5,)}, f"{WINDOWS} `mem_len`"),
        ({"attn_len": (7,), "seg_len": 5}, f"{WINDOWS} `seg_len`"),
        ({"attn_len": (7,), "same_length": False}, f"{WINDOWS} `same_length`"),
        ({"attn_len": "auto", "mem_len": "auto"}, f"{WINDOWS} `mem_len`"),
        ({"cache": 9, "mem_len": (0, 5)}, f"{ONE_LENGTH} `mem_len`, which is not searched for"),
        ({"cache": 9, "mem_len": "auto"}, f"{ONE_LENGTH} `mem_len`, which is not searched for"),
        ({"dynamic": True, "attn_len": (5,)}, f"{ONE_LENGTH} memory length; leave out `attn_len`"),
        ({"cache": 9, "plot": FILE}, f"{ONE_LENGTH} memory length; leave out `plot`"),
        ({"dynamic": True, "losses": FILE}, f"{LOSSES} `dynamic`"),
        ({"protocols": PROTOCOLS, "losses": FILE}, f"{LOSSES} `protocols`"),
        (
            {"protocols": ("disjont",)},
            'unknown protocol "disjont"; did you mean "disjoint"? (known: disjoint, strided,',
        ),
        ({"protocols": PROTOCOLS, "cache": 3}, f"{ALONE} `cache`"),
        ({"protocols": PROTOCOLS, "dynamic": True}, f"{ALONE} `dynamic`"),
        ({"protocols": PROTOCOLS, "plot": FILE}, f"{ALONE} `plot`"),
        ({"protocols": PROTOCOLS, "mem_len": "auto"}, f"{ALONE} `mem_len`"),
        ({"protocols": PROTOCOLS, "attn_len": "auto"}, f"{ALONE} `attn_len`"),
        (
            {"protocols": PROTOCOLS, "mem_len": (0, 5)},
            "`mem_len` 0 is not a recurrence; `protocols` disjoint evaluates",
        ),
        (
            {"protocols": ("sliding",), "same_length": False},
            "recurrence is not among the `protocols`; leave out `same_length`",
        ),
        ({"protocols": ("recurrence",), "attn_len": (5,)}, "recurrence has no windows; leave out `attn_len`"),
        ({"protocols": ("disjoint",), "stride": 2}, "strided is not among the `protocols`; leave out `stride`"),
    ],
)
def test_values_and_combinations_are_rejected(options, message):
    assert rejection(EvalOptions, **options).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": True}, "several processes evaluate the model alone; leave out `dynamic`"),
        ({"cache": 9}, "several processes evaluate the model alone; leave out `cache`"),
        ({"text": STDIN}, "`text` -: several processes cannot share stdin; give a file instead"),
    ],
)
def test_processes_that_cannot_share_the_work_are_rejected(options, message):
    options = EvalOptions(**options)
    options.check_processes(1)
    assert rejection(options.check_processes, 2).startswith(message)


def test_texts_of_the_command_line_are_parsed(tmp_path):
    assert parse_lengths_or_auto("5,0,5", "") == (5, 0)
    assert parse_lengths_or_auto("auto", "") == "auto"
    assert [parse_distance(text, "") for text in ("7", "none", "off")] == [7, "none", "none"]
    assert parse_losses_path(str(tmp_path / "new.h5"), "") == tmp_path / "new.h5"
    (tmp_path / "a.txt").write_bytes(b"the \xff")
    text = read_user_text(str(tmp_path / "a.txt"), "`text` a.txt")
    assert (text.name, text.data, text.label) == (str(tmp_path / "a.txt"), b"the \xff", "`text` a.txt")


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
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
    assert rejection(parse, text, "O").startswith(message)
