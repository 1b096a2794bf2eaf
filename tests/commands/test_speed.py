"""txl speed: models that are timed, and consistency of the numbers."""

import json
import os
from collections import defaultdict

import pytest
import torch

from tests.commands.novel import RECIPE, card, done, json_of, on_a_full_disk, refusal
from tests.extensions import registered_watched

QUICK = ["--attn-len", 11, "--repeat", 1]
SMALL = [
    *("--set", "model.n_layers=1", "--set", "model.d_model=8", "--set", "model.n_heads=1", "--set", "model.d_head=3"),
    *("--set", "model.d_inner=5", "--set", "train.seg_len=5", "--set", "train.mem_len=5", "--set", "eval.mem_len=7"),
    *("--set", "train.valid_seg_len=5"),
]


def test_the_numbers_of_a_timing_are_consistent(here):
    output = json_of("speed", "byte", "--attn-len", "11,800", "--repeat", 2)
    assert output["model"] == "run runs/byte"
    assert output["parameters"] == card("runs/byte")["parameters"]
    assert (output["precision"], output["repeat"]) == ("fp32", 2)
    assert output["device"].startswith("cpu (")
    assert output["peak_gflops_per_s"] > 1
    assert [row["attn_len"] for row in output["slowdown"]] == [11, 800]
    assert [row["paper_slowdown"] for row in output["slowdown"]] == [None, 363]
    for row in output["slowdown"]:
        assert row["seg_len"] == 5
        xl, vanilla = row["xl_ms_per_token"], row["vanilla_ms_per_token"]
        assert row["slowdown"] == pytest.approx(vanilla / xl, rel=1e-12)
        assert row["slowdown_single"] == pytest.approx(vanilla / row["xl_single_ms_per_token"], rel=1e-12)
        assert row["slowdown_batched"] == pytest.approx(row["vanilla_batched_ms_per_token"] / xl, rel=1e-12)
        assert row["xl_low_high_ms"][0] <= xl <= row["xl_low_high_ms"][1]
        assert row["vanilla_low_high_ms"][0] <= vanilla <= row["vanilla_low_high_ms"][1]
        assert 0 < row["xl_share_of_peak"] < 1
        assert row["vanilla_batched_ms_per_token"] <= vanilla
        assert row["windows"] in [2**n for n in range(20)]
    assert [row["work"] for row in output["throughput"]] == [
        "evaluation, 1 lane, L 5, M 5",
        "evaluation, 3 lanes, L 5, M 5",
        "one token at a time, L 1, M 5",
        "training, 3 lanes, L 5, M 5",
    ]
    for row in output["throughput"]:
        assert row["tokens_per_s"] * row["ms_per_token"] == pytest.approx(1000)
        assert 0 < row["share_of_peak"] < 1
        assert row["peak_memory_bytes"] is None or row["peak_memory_bytes"] > 1 << 20
    assert [row["tokens_per_step"] for row in output["throughput"]] == [5, 15, 1, 15]
    assert {row["path"] for row in output["throughput"]} == {"tiles, not compiled, not captured"}


def test_timing_a_smaller_batch_size_is_reported(here):
    timed = done("speed", "tiny.toml", "--set", "train.batch_size=300", *QUICK)
    assert "training, 204 of 300 lanes, L 5, M 5" in timed.stdout  # 1,024 tokens at most, in segments of five


# One layer of tiny.toml for one token: four projections, two matrices of the feed-forward block; a key costs three
# products with 15 numbers. The softmax scores 256 symbols.
LAYER, KEY, ENDS = 4 * 8 * 15 + 2 * 8 * 11, 3 * 15, 8 * 256


@pytest.mark.parametrize(
    ("changes", "evaluation", "single"),
    [
        # Every query sees five keys.
        ([], 2 * (LAYER + 5 * KEY) + ENDS, 2 * (LAYER + 5 * KEY) + ENDS),
        # The memory's five, and of the segment's five the first query one, the last one all; or just the token itself.
        (["eval.same_length=off"], 2 * (LAYER + 8 * KEY) + ENDS, 2 * (LAYER + 6 * KEY) + ENDS),
    ],
    ids=["memory", "all keys"],
)
def test_shares_of_the_peak_count_the_visible_keys(here, changes, evaluation, single):
    output = json_of("speed", "tiny.toml", *(word for change in changes for word in ("--set", change)), *QUICK)
    one_lane, _, single_tokens, _ = output["throughput"]
    for row, products in ((one_lane, evaluation), (single_tokens, single)):
        flops = row["share_of_peak"] * 1e9 * output["peak_gflops_per_s"] / row["tokens_per_s"]
        assert flops == pytest.approx(2 * products, rel=1e-9)


@pytest.mark.parametrize(
    ("command", "attn_len", "limit"),
    [
        (["speed", "watched", *QUICK], 11, 10),  # the trained L + M
        (["eval", "watched", "--mem-len", 5, "--max-distance", 3], 5, 3),
    ],
    ids=["speed", "eval"],
)
def test_both_sides_of_the_slowdown_compute_the_same_function(watched, command, attn_len, limit):
    limits = defaultdict(set)

    def on_terms(reach, max_distance):
        if not torch.is_grad_enabled():  # not in training
            limits[reach].add(max_distance)

    watched.on_terms = on_terms
    json_of(*command)
    assert attn_len in limits  # of both
    assert set.union(*limits.values()) == {limit}


LEARNED = ["--set", "model.position=learned", "--set"]
LIMITS = [[*LEARNED, "model.n_positions={}"], ["--set", "model.window={}"]]


@pytest.mark.parametrize("changes", LIMITS, ids=["learned", "window"])
@pytest.mark.parametrize(("limit", "lengths"), [(11, [11]), pytest.param(1800, [800, 1800], marks=pytest.mark.slow)])
def test_table_9_is_limited_to_the_positions_of_the_model(here, changes, limit, lengths):
    output = json_of("speed", "tiny.toml", *(word.format(limit) for word in changes), "--repeat", 1)
    assert [row["attn_len"] for row in output["slowdown"]] == lengths
    changes = [word.format(limit) for word in changes]
    message = refusal("speed", "tiny.toml", *changes, "--attn-len", f"7,{limit + 1}")
    assert f"attends to {limit:,} tokens at most" in message


def test_a_recipe_is_timed_with_random_weights_of_its_store(here):
    result = done("speed", "tiny.toml", "--attn-len", 800, "--repeat", 1, "--plot", "speed.svg")
    assert (here / "speed.svg").read_text().startswith("<?xml")
    assert "recipe tiny.toml with random weights (V = 256) on cpu" in result.stdout
    assert "363x" in result.stdout


def test_without_any_run_the_enwik8_recipe_is_timed(untouched):
    output = json_of("speed", "--attn-len", 7, "--repeat", 1, *SMALL)
    assert output["model"] == "recipe enwik8 with random weights (V = 204)"


@pytest.mark.parametrize(
    ("words", "telling"),
    [("byte --set model.n_layers=3", "not a run"), ("byte --precision fp16", "bf16"), ("enwik", '"enwik8"?')],
)
def test_wrong_options_are_rejected(here, words, telling):
    assert telling in refusal("speed", *words.split())


def failing_in_training(error):
    """Return a function that raises an error where a model is read for training."""

    def on_terms(reach, max_distance):
        if torch.is_grad_enabled():
            raise error

    return on_terms


def test_training_that_runs_out_of_memory_is_left_out(watched):
    watched.on_terms = failing_in_training(torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB"))
    timed = done("speed", "watched", *QUICK)
    assert "one token at a time, L 1, M 5" in timed.stdout
    assert "training, 3" not in timed.stdout
    assert "training is not timed: train.batch_size = 3 runs out of memory" in timed.stderr


def test_training_is_timed_with_the_gradient_accumulation_of_the_recipe(here):
    batch_sizes = []

    def on_embedding(embedded):
        if torch.is_grad_enabled():
            batch_sizes.append(len(embedded))

    (here / "parts.toml").write_text(RECIPE + "\n[published]\nvocab_size = 37\n")
    with registered_watched() as watched:
        watched.on_embedding = on_embedding
        changes = ["--set", "train.accumulate=3", "--set", "model.position=watched"]
        timed = done("speed", "parts.toml", *QUICK, *changes)
    assert "training, 3 lanes, L 5, M 5" in timed.stdout
    assert batch_sizes == [1] * 3 * 3  # steps of three: one to fill the memory, one to warm up, and the timed one


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        (["speed", "compiled.toml", *QUICK, "--set", "train.compile=on"], 'time a recipe with train.compile = "off"'),
        (["speed", "byte", *QUICK, "--compile", "on"], 'time a recipe with train.compile = "off"'),
        (["generate", "byte", "--prompt", "the", "--compile", "on"], "--compile off"),
    ],
)
def test_a_missing_compiler_is_reported_in_one_line(here, command, instead):
    torch._dynamo.reset()  # what was compiled before needs no compiler
    (here / "compiled.toml").write_text(RECIPE + "\n[published]\nvocab_size = 37\n")
    with torch._inductor.config.patch({"cpp.cxx": (None, "no-such-compiler"), "force_disable_caches": True}):
        message = refusal(*command)
    assert message.startswith("compile: PyTorch finds no working compiler for cpu (")
    assert message.endswith(f"; install g++, or {instead}")


@pytest.mark.skipif(os.name == "nt", reason="limits of a process")
def test_a_figure_that_cannot_be_written_does_not_lose_the_times(here):
    ended = on_a_full_disk(1000, "speed", "byte", *map(str, QUICK), "--plot", "times.svg", "--json")
    assert ended.exit_code == 1
    assert "times.svg" in ended.stderr.splitlines()[-1]
    assert json.loads(ended.stdout)["slowdown"]


def test_a_mistyped_name_may_be_of_a_run_or_of_a_recipe(here):
    for name, meant in (("bytes", '"byte"'), ("enwik9", '"enwik8"')):
        telling = refusal("speed", name)
        assert "unknown run or recipe" in telling
        assert f"did you mean {meant}" in telling
