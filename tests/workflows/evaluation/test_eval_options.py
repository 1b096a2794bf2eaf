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
    parse_protocols,
    read_user_text,
)

TEXT = UserText("a.txt", b"the fox", label="`text` a.txt")
STDIN = UserText("stdin", b"the fox", label="`text` -")
ALONE = "`protocols` compares evaluations of the model alone at given lengths; leave out"
WINDOWS = "`attn_len` evaluates windows without memory;"
ONE_LENGTH = "`cache` and `dynamic` take one `mem_len` and no `attn_len`"
LOSSES = "`losses` writes the losses of the model alone, by one protocol; leave out"
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
        ({"split": "tset"}, 'unknown split "tset"; did you mean "test"? (known: train, valid, test)'),
        ({"split": "test", "text": TEXT}, "`text` is scored instead of a split; leave out `text` or `split`"),
        ({"stride": 2}, "`stride` is the number of tokens predicted per window; add `attn_len`, or leave it out"),
        ({"attn_len": (9, 7), "stride": 8}, "`stride` 8 exceeds the window length 7; give at most that"),
        ({"attn_len": (7,), "mem_len": (5,)}, f"{WINDOWS} `mem_len` has no effect there, leave it out"),
        ({"attn_len": (7,), "seg_len": 5}, f"{WINDOWS} `seg_len` has no effect there, leave it out"),
        ({"attn_len": (7,), "same_length": False}, f"{WINDOWS} `same_length` has no effect there, leave it out"),
        ({"attn_len": "auto", "mem_len": "auto"}, f"{WINDOWS} `mem_len` has no effect there, leave it out"),
        ({"cache": 9, "mem_len": (0, 5)}, ONE_LENGTH),
        ({"cache": 9, "mem_len": "auto"}, ONE_LENGTH),
        ({"dynamic": True, "attn_len": (5,)}, ONE_LENGTH),
        (
            {"cache": 9, "plot": FILE},
            "`cache` and `dynamic` take one length, and `plot` needs several; leave out `plot`",
        ),
        ({"dynamic": True, "losses": FILE}, f"{LOSSES} `dynamic`"),
        ({"protocols": PROTOCOLS, "losses": FILE}, f"{LOSSES} `protocols`"),
        (
            {"protocols": ("disjont",)},
            'unknown protocol "disjont"; did you mean "disjoint"? (known: disjoint, strided,',
        ),
        ({"protocols": PROTOCOLS, "cache": 3}, f"{ALONE} `cache`"),
        ({"protocols": PROTOCOLS, "dynamic": True}, f"{ALONE} `dynamic`"),
        ({"protocols": PROTOCOLS, "plot": FILE}, f"{ALONE} `plot`"),
        ({"protocols": PROTOCOLS, "mem_len": "auto"}, f"{ALONE} `mem_len` auto"),
        ({"protocols": PROTOCOLS, "attn_len": "auto"}, f"{ALONE} `attn_len` auto"),
        (
            {"protocols": PROTOCOLS, "mem_len": (0, 5)},
            "`mem_len` 0 is not a recurrence; `protocols` disjoint evaluates",
        ),
        ({"protocols": ("sliding",), "same_length": False}, "`same_length` is a setting of recurrence; add recurrence"),
        ({"protocols": ("recurrence",), "attn_len": (5,)}, "`attn_len` is the length of windows; add disjoint to"),
        ({"protocols": ("disjoint",), "stride": 2}, "`stride` is the step of strided windows; add strided to"),
    ],
)
def test_values_and_combinations_are_rejected(options, message):
    assert rejection(EvalOptions, **options).startswith(message)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dynamic": True}, "`dynamic` runs in one process, and 2 were requested; leave out `dynamic`, or use one"),
        ({"cache": 9}, "`cache` runs in one process, and 2 were requested; leave out `cache`, or use one process"),
        ({"text": STDIN}, "`text` -: several processes cannot share stdin; give a file, or use one process"),
    ],
)
def test_processes_that_cannot_share_the_work_are_rejected(options, message):
    options = EvalOptions(**options)
    options.check_processes(1)
    assert rejection(options.check_processes, 2).startswith(message)


def test_texts_of_the_command_line_are_parsed(tmp_path):
    assert parse_lengths_or_auto("5,0,5", "") == (5, 0)
    assert parse_lengths_or_auto("auto", "") == "auto"
    assert parse_protocols("all", "") == PROTOCOLS
    assert parse_protocols("sliding,disjoint", "") == ("sliding", "disjoint")
    assert [parse_distance(text, "") for text in ("7", "none", "off")] == [7, "none", "none"]
    assert parse_losses_path(str(tmp_path / "new.h5"), "") == tmp_path / "new.h5"
    (tmp_path / "a.txt").write_bytes(b"the \xff")
    text = read_user_text(str(tmp_path / "a.txt"), "`text` a.txt")
    assert (text.name, text.data, text.label) == (str(tmp_path / "a.txt"), b"the \xff", "`text` a.txt")


@pytest.mark.parametrize(
    ("parse", "text", "message"),
    [
        *(
            (parse_lengths_or_auto, text, f"O: {text!r} is not a whole number; write lengths like 160,640")
            for text in ("long", "1.5", "")
        ),
        (parse_lengths_or_auto, "9" * 20, "O: a length cannot be above 2147483647"),
        (parse_lengths_or_auto, "0,auto", 'O: give "auto" alone, which searches for one length, or lengths like'),
        *(
            (parse_distance, text, 'O: give a whole number from 1 to 2147483647, or "none"')
            for text in ("far", "0", "²", "9" * 20)
        ),
        (read_user_text, "nowhere.txt", "O: cannot be read (No such file or directory); check the path"),
        (read_user_text, ".", "O: cannot be read (Is a directory); check the path"),
        (parse_losses_path, "no/losses.h5", "O: there is no folder no; make it first"),
    ],
)
def test_texts_that_cannot_be_parsed_are_rejected(parse, text, message):
    assert rejection(parse, text, "O").startswith(message)
