"""txl eval --protocols: the same weights and tokens by windows of each kind and with memory."""

from pathlib import Path

import pytest

from tests.cards import read_log
from tests.commands.novel import cells, done, json_of, recipe_of, refusal, train
from tests.commands.test_eval_processes import TIMES

ORDER = ["disjoint", "strided", "recurrence", "sliding"]
UNCOMPARED = TIMES | {"best"}
VANILLA = ("train.mem_len=0", "eval.mem_len=0")


def compared(*arguments):
    return json_of("eval", *arguments, "--protocols", "all")


def row_of(*arguments):
    """Return the row that `txl eval` gives for one setting, without times and marks."""
    (row,) = json_of("eval", *arguments)["rows"]
    return {key: value for key, value in row.items() if key not in UNCOMPARED}


def test_each_row_is_the_evaluation_of_its_own_options(here):
    rows = compared("byte", "--positions", 211)["rows"]
    expected = {
        "disjoint": ["--attn-len", 5, "--stride", 5],
        "strided": ["--attn-len", 5, "--stride", 2],
        "recurrence": ["--mem-len", 5],
        "sliding": ["--attn-len", 5],
    }
    assert [row["protocol"] for row in rows] == list(expected) == ORDER
    for row, arguments in zip(rows, expected.values(), strict=True):
        single = row_of("byte", "--positions", 211, *arguments)
        assert {key: row[key] for key in single} == single
        assert row["change"] == pytest.approx(row["bpc"] / rows[0]["bpc"] - 1, rel=1e-12)


def test_lengths_and_stride_can_be_given(here):
    rows = compared("byte", "--attn-len", "7,4", "--stride", 3, "--mem-len", "3,11", "--positions", 97)["rows"]
    settings = [
        (row["protocol"], row.get("attn_len"), row.get("stride")) if "stride" in row else row["mem_len"] for row in rows
    ]
    windows = [("disjoint", 7, 7), ("disjoint", 4, 4), ("strided", 7, 3), ("strided", 4, 3)]
    assert settings == [*windows, 3, 11, ("sliding", 7, 1), ("sliding", 4, 1)]
    rows = compared("byte", "--mem-len", 9, "--positions", 97)["rows"]
    assert [row["attn_len_max"] for row in rows] == [9, 9, 9, 9]  # windows as long as the given memory by default


def test_a_model_without_memory_lacks_recurrence(here):
    train(*VANILLA, "model.position=learned", "model.n_positions=5", name="vanilla")
    reason = "runs/vanilla was trained without memory and with absolute positions"
    output = compared("vanilla", "--positions", 97)
    assert [row["protocol"] for row in output["rows"]] == ["disjoint", "strided", "sliding"]
    assert output["lacking"] == {"recurrence": reason}
    assert f"no recurrence: {reason}." in done("eval", "vanilla", "--protocols", "all", "--positions", 97).stdout
    assert reason in refusal("eval", "vanilla", "--protocols", "disjoint,recurrence")
    assert "exceeds the window length 5" in refusal("eval", "vanilla", "--protocols", "strided", "--stride", 6)
    assert "has 5 positions" in refusal("eval", "vanilla", "--protocols", "all", "--attn-len", 6)


def test_a_recurrent_state_is_read_in_windows_and_along_the_text(here):
    Path("lstm.toml").write_text(recipe_of("lstm"))
    done("train", "lstm.toml")
    output = compared("lstm", "--batch-size", 1)
    assert [row["protocol"] for row in output["rows"]] == ORDER
    assert output["lacking"] == {}
    state, whole = output["rows"][2], json_of("eval", "lstm", "--batch-size", 1)["rows"][0]
    assert state["loss_nats"] == whole["loss_nats"]
    # A window of the whole text carries the state along it, too.
    (window,) = json_of("eval", "lstm", "--protocols", "disjoint", "--attn-len", 10_000)["rows"]
    assert window["loss_nats"] == pytest.approx(whole["loss_nats"], rel=1e-6)
    protocols = [row[0].removesuffix(" *") for row in cells(done("eval", "lstm", "--protocols", "all"))]
    assert "recurrence, recurrent state" in protocols


def test_rows_are_recorded_with_their_protocol(here):
    done("eval", "byte", "--protocols", "recurrence,disjoint,recurrence", "--positions", 97)
    disjoint, recurrence = read_log(Path("runs/byte/evals.jsonl"))
    assert (disjoint["protocol"], disjoint["attn_len"], disjoint["stride"]) == ("disjoint", 5, 5)
    assert (recurrence["protocol"], recurrence["mem_len"], recurrence["seg_len"]) == ("recurrence", 5, 5)
    assert "change" not in disjoint
