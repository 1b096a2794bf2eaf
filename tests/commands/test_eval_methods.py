"""txl eval without memory, with a cache, with dynamic evaluation."""

import dataclasses
import math

import h5py
import pytest

from tests.cards import read_log
from tests.commands.novel import HERE, done, json_of, refusal, train
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.workflows.evaluation import evaluate
from txlcli.workflows.evaluation.adapted import best_dynamic_settings
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.workspace import Workspace

SHORT = ["--positions", 60, "--batch-size", 2]
WINDOWS = ["model.position=learned", "model.n_positions=5", "train.mem_len=0", "eval.mem_len=0"]
"""Changes for a model without memory, whose windows are limited by learned positions."""


def spans(output):
    """Return the fewest and the most keys of a query in each row."""
    return [(row["attn_len_min"], row["attn_len_max"]) for row in output["rows"]]


def test_windows_are_evaluated_by_length(here):
    output = json_of("eval", "byte", "--attn-len", "3,7", *SHORT)
    assert spans(output) == [(3, 3), (7, 7)]
    assert all(row["tokens"] == 60 and row["slowdown"] is None for row in output["rows"])
    assert (output["seg_len"], output["same_length"], output["max_distance"]) == (None, None, 10)
    assert spans(json_of("eval", "byte", "--attn-len", "7", "--stride", 3, *SHORT)) == [(5, 7)]
    assert "each window is recomputed" in done("eval", "byte", "--attn-len", "3,7", *SHORT).stdout


def test_a_run_with_a_window_sees_that_many_keys_at_most(here):
    train("model.window=4", name="windowed")
    by_segments = ["eval", "windowed", "--no-same-length", "--seg-len", 5, "--positions", 60]
    output = json_of(*by_segments, "--mem-len", "2,7,50", "--batch-size", 2)
    assert spans(output) == [(3, 4), (4, 4), (4, 4)]
    losses = [row["loss_nats"] for row in output["rows"]]
    assert losses[1] == pytest.approx(losses[2], rel=1e-6)  # neither sees more than W
    windows = json_of("eval", "windowed", "--attn-len", "3,60", "--positions", 60, "--batch-size", 1)
    assert spans(windows) == [(3, 3), (4, 4)]
    (segments,) = json_of(*by_segments, "--mem-len", 7, "--batch-size", 1)["rows"]
    assert windows["rows"][1]["loss_nats"] == pytest.approx(segments["loss_nats"], rel=1e-5)  # a memory adds nothing
    assert len(json_of("generate", "windowed", "--prompt", "the fox", "--tokens", 12)["samples"][0]["tokens"]) == 12


def test_absolute_positions_have_no_limit_of_distances_and_no_memory_that_was_not_trained(here):
    train("model.position=sinusoid", name="absolute")
    assert "leave out --max-distance" in refusal("eval", "absolute", "--max-distance", "none")
    assert json_of("eval", "absolute", *SHORT)["max_distance"] is None
    assert json_of("eval", "absolute", "--attn-len", 4, *SHORT)["max_distance"] is None
    train(*WINDOWS, name="windows")
    assert "give --attn-len" in refusal("eval", "windows", "--mem-len", "0,5")


def test_segments_of_dynamic_evaluation_have_learned_positions(here):
    train(*WINDOWS, name="windows")
    assert "--seg-len 6: runs/windows has 5 positions" in refusal("eval", "windows", "--dynamic", "--seg-len", 6)


def test_windows_longer_than_the_text_are_truncated(here):
    output = json_of("eval", "byte", "--attn-len", "50,70,90", *SHORT, "--losses", "losses.h5", "--plot", "curve.svg")
    assert [row["attn_len"] for row in output["rows"]] == [50, 70, 90]
    assert spans(output) == [(50, 50), (60, 60), (60, 60)]
    with h5py.File("losses.h5") as file:
        assert {"attn_len_50", "attn_len_70", "attn_len_90"} <= set(file)
    assert spans(json_of("eval", "byte", "--attn-len", 90, "--stride", 35, *SHORT)) == [(56, 60)]
    assert spans(json_of("eval", "byte", "--attn-len", 64, "--stride", 64, *SHORT)) == [(1, 60)]


def test_the_cache_and_dynamic_evaluation_are_compared_with_the_model(here):
    output = json_of("eval", "word", "--cache", 30, "--dynamic", *SHORT)
    model, cache, dynamic = output["rows"]
    assert [row["method"] for row in output["rows"]] == ["model", "cache 30", "dynamic"]
    assert model["loss_nats"] == json_of("eval", "word", *SHORT)["rows"][0]["loss_nats"]
    assert set(cache["adaptation"]) == {"theta", "lambda", "searched_on"}
    assert set(dynamic["adaptation"]) == {"lr", "decay", "searched_on"}
    assert dynamic["loss_nats"] != model["loss_nats"]
    assert all(0 < row["processor_share"] <= 1 for row in output["rows"])
    assert "cache 30: theta = " in done("eval", "word", "--cache", 30, *SHORT).stdout


def evaluate_words(**options):
    """Evaluate the run of words on 60 tokens."""
    options = EvalOptions(positions=60, batch_size=2, **options)
    return evaluate.evaluate_run(run_directory.find("word", HERE["runs_dir"]), options, Workspace(**HERE))


def test_the_parameters_are_searched_on_valid_for_every_split(here):
    test, valid = (evaluate_words(cache=30, split=split) for split in ("test", "valid"))
    (_, on_test), (_, on_valid) = test.rows, valid.rows
    assert on_test.adaptation == on_valid.adaptation
    assert on_test.loss_nats != on_valid.loss_nats
    assert (test.in_sample, valid.in_sample) == (False, True)


def test_larger_learning_rates_are_tried_until_the_loss_increases_or_is_nan():
    tried = []

    def loss_on_valid(settings):
        tried.append((settings.lr, settings.decay))
        return abs(settings.lr - 0.012) if settings.lr < 0.02 else math.nan

    best = best_dynamic_settings(loss_on_valid)
    assert best.lr == 1e-2
    assert {lr for lr, _ in tried} == {0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2}
    assert {decay for lr, decay in tried if lr == best.lr} == {0.0, 1e-3, 1e-2}
    assert best_dynamic_settings(lambda settings: settings.lr).lr == 0


def test_auto_searches_for_the_memory_length_on_valid_and_applies_it_to_test(here):
    output = json_of("eval", "word", "--mem-len", "auto", *SHORT)
    search = output["search"]
    lengths = [one["length"] for one in search["tried"]]
    assert (search["option"], search["split"], search["threshold"]) == ("--mem-len", "valid", 0.001)
    assert lengths == sorted(set(lengths))
    assert lengths[:2] == [1, 2]  # not 0: without memory queries see their segment, not M keys
    assert [row["mem_len"] for row in output["rows"]] == [search["found"]]
    assert read_log("runs/word/evals.jsonl")[-1]["chosen_on_valid"]
    on_valid = json_of("eval", "word", "--split", "valid", "--mem-len", ",".join(map(str, lengths)), *SHORT)
    assert [one["loss_nats"] for one in search["tried"]] == [row["loss_nats"] for row in on_valid["rows"]]
    again = json_of("eval", "word", "--mem-len", search["found"], *SHORT)
    assert again["rows"][0]["loss_nats"] == output["rows"][0]["loss_nats"]
    assert f"--mem-len {search['found']} is the shortest" in done("eval", "word", "--mem-len", "auto", *SHORT).stdout
    output = json_of("eval", "word", "--mem-len", "auto", "--no-same-length", *SHORT)
    assert [one["length"] for one in output["search"]["tried"]][:2] == [0, 1]


def test_auto_searches_for_the_window_of_a_model_without_memory(here):
    # Learned positions limit the windows, and the lengths that are tried.
    train(*WINDOWS, name="windows")
    output = json_of("eval", "windows", "--attn-len", "auto", *SHORT)
    assert max(one["length"] for one in output["search"]["tried"]) <= 5  # the number of learned positions
    assert output["rows"][0]["attn_len_max"] == output["search"]["found"]
    steps = json_of("eval", "windows", "--attn-len", "auto", "--stride", 2, *SHORT)["search"]["tried"]
    assert {one["length"] for one in steps} <= {2, 4, 5}  # in steps of a stride
    for words, telling in (
        ("--attn-len auto --stride 9", "can be tried, 5"),
        ("--mem-len auto", "give --attn-len auto"),
        ("--attn-len 4,6", "has 5 positions"),
    ):
        assert telling in refusal("eval", "windows", *words.split())


def test_a_cache_longer_than_a_lane_and_dynamic_evaluation_in_fp16_are_rejected(here):
    assert "exceeds the 30 tokens of a lane" in refusal("eval", "byte", "--cache", 40, *SHORT)
    workspace = Workspace(**HERE)
    opened = workspace.open_run(run_directory.find("byte", workspace.runs_dir))
    as_on_a_gpu = dataclasses.replace(opened, precision="fp16")  # a CPU refuses it before
    with pytest.raises(UsageError, match="fp16 is too coarse"):
        evaluate.evaluate(as_on_a_gpu, EvalOptions(dynamic=True), workspace)


def test_a_missing_split_that_is_needed_is_reported_before_scoring(here):
    texts = {split: (here / f"novel/{split}.txt").read_bytes() for split in ("train", "valid", "test")}
    cases = [("valid", ["--cache", 9]), ("valid", ["--dynamic"]), ("train", ["--dynamic"]), ("test", [])]
    for missing, options in cases:
        for split, text in texts.items():
            (here / f"novel/{split}.txt").write_bytes(text)
        (here / f"novel/{missing}.txt").unlink()
        done("prepare", "novel", "--force")
        assert f"data/novel.h5 has no {missing} split" in refusal("eval", "byte", *options, *SHORT, code=1)
