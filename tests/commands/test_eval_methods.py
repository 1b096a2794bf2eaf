"""txl eval without memory, with a cache, with dynamic evaluation."""

import dataclasses
import json

import h5py
import pytest

from tests.commands.novel import HERE, cells, done, json_of, refusal, train
from txlcli.errors import TrainingError, UsageError
from txlcli.workflows.evaluation.adapted import best_dynamic_settings
from txlcli.workflows.evaluation.evaluate import evaluate, evaluate_opened
from txlcli.workflows.evaluation.options import AdaptationSearch, EvalOptions
from txlcli.workflows.reporter import SilentReporter
from txlcli.workflows.workspace import Workspace

SHORT = ["--positions", 60, "--batch-size", 2]


def test_windows_are_evaluated_by_length(here):
    output = json_of("eval", "byte", "--attn-len", "3,7", *SHORT)
    assert [(row["attn_len_min"], row["attn_len_max"], row["stride"]) for row in output["rows"]] == [
        (3, 3, 1),
        (7, 7, 1),
    ]
    assert all(row["tokens"] == 60 and row["slowdown"] is None for row in output["rows"])
    assert (output["seg_len"], output["same_length"], output["max_distance"]) == (None, None, 10)
    strided = json_of("eval", "byte", "--attn-len", "7", "--stride", 3, *SHORT)["rows"][0]
    assert (strided["attn_len_min"], strided["attn_len_max"]) == (5, 7)
    table = done("eval", "byte", "--attn-len", "3,7", *SHORT).stdout
    assert "Without memory: each window is recomputed, one prediction per window, max_distance = 10, fp32." in table


def test_one_window_over_the_whole_text_is_one_segment(here):
    window = json_of("eval", "byte", "--attn-len", "60", "--positions", 60, "--batch-size", 1)["rows"][0]
    segment = json_of("eval", "byte", "--mem-len", 0, "--seg-len", 60, "--positions", 60, "--batch-size", 1)["rows"][0]
    assert window["loss_nats"] == pytest.approx(segment["loss_nats"], rel=1e-6)


def test_a_run_with_a_window_sees_that_many_keys_at_most(here):
    train("model.window=4", name="windowed")
    rows = json_of("eval", "windowed", "--mem-len", "2,7,50", "--no-same-length", "--seg-len", 5, *SHORT)["rows"]
    assert [(row["attn_len_min"], row["attn_len_max"]) for row in rows] == [(3, 4), (4, 4), (4, 4)]
    assert rows[1]["loss_nats"] == pytest.approx(rows[2]["loss_nats"], rel=1e-6)  # neither sees more than W
    windows = json_of("eval", "windowed", "--attn-len", "3,60", "--positions", 60, "--batch-size", 1)["rows"]
    assert [(row["attn_len_min"], row["attn_len_max"]) for row in windows] == [(3, 3), (4, 4)]
    one_lane = ["--mem-len", 7, "--no-same-length", "--seg-len", 5, "--positions", 60, "--batch-size", 1]
    segments = json_of("eval", "windowed", *one_lane)["rows"][0]
    assert windows[1]["loss_nats"] == pytest.approx(segments["loss_nats"], rel=1e-5)  # a memory changes nothing else
    assert len(json_of("generate", "windowed", "--prompt", "the fox", "--tokens", 12)["samples"][0]["tokens"]) == 12


@pytest.mark.parametrize("position", ["shaw", "sinusoid", "learned"])
def test_every_encoding_trains_evaluates_and_generates(here, position):
    learned = [] if position == "sinusoid" else ["model.n_positions=5"]
    train(f"model.position={position}", "train.loss_part=half", "train.seg_len=4", *learned, name="memory")
    assert json_of("eval", "memory", *SHORT)["rows"][0]["tokens"] == 60
    none = [f"model.position={position}", "train.mem_len=0", "eval.mem_len=0", *learned]
    train(*none, name="windows")
    assert json_of("eval", "windows", "--attn-len", 5, *SHORT)["rows"][0]["tokens"] == 60
    for run in ("memory", "windows"):
        assert len(json_of("generate", run, "--prompt", "the fox", "--tokens", 12)["samples"][0]["tokens"]) == 12


@pytest.mark.parametrize("position", ["sinusoid", "learned"])
def test_max_distance_is_refused_for_absolute_positions(here, position):
    learned = ["model.n_positions=5"] if position == "learned" else []
    train(f"model.position={position}", *learned, name="absolute")
    for limit in ("7", "none"):
        assert refusal("eval", "absolute", "--max-distance", limit) == (
            "runs/absolute: its encoding of positions has no such limit; leave out --max-distance"
        )
    output = json_of("eval", "absolute", *SHORT)
    assert (output["position"], output["max_distance"]) == (position, None)
    assert "L = 5, same_length = m, fp32; 2 lanes" in done("eval", "absolute", *SHORT).stdout
    assert "one prediction per window, fp32." in done("eval", "absolute", "--attn-len", 4, *SHORT).stdout


@pytest.mark.parametrize("position", ["sinusoid", "learned"])
def test_memory_is_refused_for_a_model_trained_without_it(here, position):
    learned = ["model.n_positions=5"] if position == "learned" else []
    train(f"model.position={position}", "train.mem_len=0", "eval.mem_len=0", *learned, name="windows")
    message = refusal("eval", "windows", "--mem-len", "0,5")
    assert message == (
        "runs/windows was trained without memory and with absolute positions; give --attn-len instead of --mem-len"
    )


def test_windows_longer_than_the_text_are_truncated_and_reported(here):
    done("eval", "byte", "--attn-len", "50,70,90", *SHORT, "--losses", "losses.h5", "--plot", "curve.svg")
    output = json_of("eval", "byte", "--attn-len", "50,70,90", *SHORT)
    assert [(row["attn_len"], row["attn_len_min"], row["attn_len_max"]) for row in output["rows"]] == [
        (50, 50, 50), (70, 60, 60), (90, 60, 60)
    ]  # fmt: skip
    with h5py.File("losses.h5") as file:
        assert {"attn_len_50", "attn_len_70", "attn_len_90"} <= set(file)
    result = done("eval", "byte", "--attn-len", "50,70", *SHORT, "--verbose")
    assert [[cell.removesuffix(" *") for cell in row[:2]] for row in cells(result)] == [["50", "50"], ["70", "60"]]
    assert "N is longer than the text in some rows: no query sees that many tokens.\n" in result.stdout
    strided = json_of("eval", "byte", "--attn-len", 90, "--stride", 35, *SHORT)["rows"][0]
    assert (strided["attn_len_min"], strided["attn_len_max"]) == (60, 60)


def test_windows_longer_than_the_learned_positions_are_refused(here):
    train("model.position=learned", "model.n_positions=5", "train.mem_len=0", "eval.mem_len=0", name="windows")
    assert refusal("eval", "windows", "--attn-len", "4,6", *SHORT) == (
        "--attn-len 6: runs/windows has learned 5 positions, so that no window is longer; give at most that"
    )


def test_the_vanilla_model_is_not_trained_with_a_memory(here):
    message = refusal("train", "tiny.toml", "--set", "model.auxiliary_losses=true")
    assert message == (
        "tiny.toml: model.auxiliary_losses belong to the vanilla model, which has no memory; --set train.mem_len=0"
    )


def test_auxiliary_classifiers_are_used_in_training_only(here):
    vanilla = ["model.position=learned", "model.n_positions=5", "model.auxiliary_losses=true"]
    train(*vanilla, "train.mem_len=0", "eval.mem_len=0", name="vanilla")
    plain = json.loads((here / "runs/vanilla/run.json").read_text())["parameters"]
    assert plain > json.loads((here / "runs/byte/run.json").read_text())["parameters"]
    assert json_of("eval", "vanilla", "--attn-len", 5, *SHORT)["rows"][0]["tokens"] == 60


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--stride", 2], "--stride is the number of tokens predicted per window; add --attn-len, or leave it out"),
        (
            ["--attn-len", 7, "--mem-len", 5],
            "--attn-len evaluates windows without memory; --mem-len has no effect there, leave it out",
        ),
        (
            ["--attn-len", 7, "--seg-len", 5],
            "--attn-len evaluates windows without memory; --seg-len has no effect there, leave it out",
        ),
        (
            ["--attn-len", 7, "--same-length"],
            "--attn-len evaluates windows without memory; --same-length has no effect there, leave it out",
        ),
        (
            ["--attn-len", 7, "--no-same-length"],
            "--attn-len evaluates windows without memory; --no-same-length has no effect there, leave it out",
        ),
        (["--attn-len", "9,7", "--stride", 8], "--stride 8 exceeds the window length 7; give at most that"),
        (["--cache", 100, "--mem-len", "0,5"], "--cache and --dynamic take one --mem-len and no --attn-len"),
        (
            ["--cache", 9, "--plot", "curve.svg"],
            "--plot plots a curve over lengths, but --cache and --dynamic take one length; leave it out",
        ),
        (["--dynamic", "--attn-len", 5], "--cache and --dynamic take one --mem-len and no --attn-len"),
        (
            ["--cache", 61, "--positions", 60, "--batch-size", 1],
            "--cache 61 exceeds the 60 tokens of a lane; give at most that, or a smaller --batch-size",
        ),
    ],
)
def test_options_that_exclude_each_other_are_refused(here, options, message):
    assert refusal("eval", "byte", *options) == message


def test_the_cache_and_dynamic_evaluation_are_compared_with_the_model(here):
    output = json_of("eval", "word", "--cache", 30, "--dynamic", *SHORT)
    model, cache, dynamic = output["rows"]
    assert [row["method"] for row in output["rows"]] == ["model", "cache 30", "dynamic"]
    assert model["loss_nats"] == json_of("eval", "word", *SHORT)["rows"][0]["loss_nats"]
    assert set(cache["adaptation"]) == {"theta", "lambda", "searched_on"}
    assert set(dynamic["adaptation"]) == {"lr", "decay", "searched_on"}
    assert dynamic["loss_nats"] != model["loss_nats"]
    table = done("eval", "word", "--cache", 30, "--dynamic", *SHORT, "--verbose").stdout
    assert "cache 30: theta = " in table
    assert f"searched on {cache['adaptation']['searched_on']:,} tokens of valid." in table
    assert "M = 5, L = 5, same_length = m, max_distance = 10, fp32; 2 lanes, 1 of them start without context." in table


def test_the_parameters_are_searched_on_valid_for_every_split(here):
    rows = [json_of("eval", "word", "--cache", 30, "--split", split, *SHORT)["rows"][1] for split in ("test", "valid")]
    assert rows[0]["adaptation"] == rows[1]["adaptation"]
    assert rows[0]["loss_nats"] != rows[1]["loss_nats"]


class Messages(SilentReporter):
    """Keeps the messages of a workflow."""

    def __init__(self):
        self.lines = []

    def say(self, message):
        self.lines.append(message)


def evaluate_adapted(search, **options):
    """Evaluate the run of words on 60 tokens, and return the rows and the messages."""
    reporter = Messages()
    options = EvalOptions(**{"positions": 60, "batch_size": 2, "search": AdaptationSearch(**search), **options})
    evaluation = evaluate("word", options, Workspace(**HERE, reporter=reporter))
    return evaluation.result["rows"], reporter.lines


def test_learning_rates_that_give_a_nan_loss_are_not_selected(here):
    (model, dynamic), _ = evaluate_adapted({"learning_rates": (0.0, 1e30)}, dynamic=True)
    assert dynamic["adaptation"]["lr"] == 0.0
    assert dynamic["loss_nats"] == pytest.approx(model["loss_nats"], rel=1e-5)


def test_an_adaptation_whose_loss_is_nan_is_named_and_the_other_rows_are_kept(here):
    search = AdaptationSearch(learning_rates=(1e30,), larger_learning_rates=())
    options = EvalOptions(dynamic=True, positions=60, batch_size=2, search=search)
    evaluation = evaluate("byte", options, Workspace(**HERE))
    assert [row["method"] for row in evaluation.result["rows"]] == ["model"]
    with pytest.raises(TrainingError) as error:
        evaluation.raise_pending()
    assert str(error.value) == "runs/byte: the loss of novel test is not finite; leave out --dynamic"


def test_the_search_scores_as_many_tokens_as_its_parameters_need(here):
    search = {"cache_tokens": 10, "dynamic_tokens": 25, "dynamic_steps": 3}
    (_, cache, dynamic), _ = evaluate_adapted(search, cache=12, dynamic=True, seg_len=5)
    assert cache["adaptation"]["searched_on"] == 2 * 12 * 2  # each of two lanes fills the cache twice
    assert dynamic["adaptation"]["searched_on"] == 3 * 5 * 2
    (_, one_lane), _ = evaluate_adapted(search, dynamic=True, seg_len=5, batch_size=1)
    assert one_lane["adaptation"]["searched_on"] == 25
    (_, cache), _ = evaluate_adapted({**search, "cache_tokens": 50}, cache=5)
    assert cache["adaptation"]["searched_on"] == 50


def test_a_cache_that_no_lane_of_valid_fills_is_reported(here):
    message = (
        "a lane of valid has 25 tokens, fewer than the cache: theta and lambda are searched with a cache that is not "
        "full"
    )
    search = {"cache_tokens": 50, "cache_fills": 0}
    assert message in evaluate_adapted(search, cache=26)[1]
    assert message not in evaluate_adapted(search, cache=25)[1]


def test_the_largest_learning_rate_tried_is_reported(here):
    _, messages = evaluate_adapted({"learning_rates": (0.0, 1e-5), "larger_learning_rates": (1e-4,)}, dynamic=True)
    assert "lr = 0.0001 is the largest value tried: an even larger one might be better" in messages


def test_larger_learning_rates_are_tried_until_the_loss_increases():
    tried = []

    def loss_on_valid(settings):
        tried.append((settings.lr, settings.decay))
        return abs(settings.lr - 0.012)

    best = best_dynamic_settings(loss_on_valid, AdaptationSearch(), SilentReporter())
    assert best.lr == 1e-2
    assert {lr for lr, _ in tried} == {0.0, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2}
    assert {decay for lr, decay in tried if lr == best.lr} == {0.0, 1e-3, 1e-2}


def test_auto_searches_for_the_memory_length_on_valid_and_applies_it_to_test(here):
    output = json_of("eval", "byte", "--mem-len", "auto", *SHORT)
    search = output["search"]
    lengths = [one["length"] for one in search["tried"]]
    assert (search["option"], search["split"], search["threshold"]) == ("--mem-len", "valid", 0.001)
    assert lengths == sorted(set(lengths))
    assert lengths[:2] == [1, 2]  # not 0: without memory queries see their segment, not M keys
    assert [row["mem_len"] for row in output["rows"]] == [search["found"]]
    on_valid = json_of("eval", "byte", "--split", "valid", "--mem-len", ",".join(map(str, lengths)), *SHORT)
    assert [one["loss_nats"] for one in search["tried"]] == [row["loss_nats"] for row in on_valid["rows"]]
    again = json_of("eval", "byte", "--mem-len", search["found"], *SHORT)
    assert again["rows"][0]["loss_nats"] == output["rows"][0]["loss_nats"]
    result = done("eval", "byte", "--mem-len", "auto", *SHORT)
    assert f"--mem-len {search['found']} is the shortest of {len(lengths)} lengths up to {lengths[-1]}" in " ".join(
        result.stdout.split()
    )
    assert f"--mem-len {lengths[0]}: valid perplexity" in result.stderr


def test_without_same_length_the_search_includes_no_memory(here):
    output = json_of("eval", "byte", "--mem-len", "auto", "--no-same-length", *SHORT)
    assert [one["length"] for one in output["search"]["tried"]][:2] == [0, 1]


def test_auto_searches_for_the_window_of_a_model_without_memory(here):
    train("model.position=learned", "model.n_positions=5", "train.mem_len=0", "eval.mem_len=0", name="windows")
    output = json_of("eval", "windows", "--attn-len", "auto", *SHORT)
    assert max(one["length"] for one in output["search"]["tried"]) <= 5  # the number of learned positions
    assert output["rows"][0]["attn_len_max"] == output["search"]["found"]
    steps = json_of("eval", "windows", "--attn-len", "auto", "--stride", 2, *SHORT)["search"]["tried"]
    assert {one["length"] for one in steps} <= {2, 4, 5}  # in steps of a stride
    message = refusal("eval", "windows", "--attn-len", "auto", "--stride", 9)
    assert message == "--stride 9 exceeds the longest window that can be tried, 5; give at most that"
    message = refusal("eval", "windows", "--mem-len", "auto")
    assert message == "runs/windows was trained without memory; give --attn-len auto instead of --mem-len"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--mem-len", "auto", "--cache", 9], "--cache and --dynamic take one --mem-len and no --attn-len"),
        (["--mem-len", "auto", "--attn-len", "auto"], "--attn-len evaluates windows without memory"),
        (
            ["--mem-len", "0,auto"],
            '--mem-len 0,auto: give "auto" alone, which searches for one length, or lengths like 160,640',
        ),
    ],
)
def test_an_impossible_search_is_refused(here, options, message):
    assert message in refusal("eval", "byte", *options)


def test_memory_beyond_the_learned_positions_has_no_slowdown(here):
    train("model.position=learned", "model.n_positions=5", name="memory")
    output = json_of("eval", "memory", "--no-same-length", *SHORT)
    assert output["rows"][0]["attn_len_max"] == 10
    assert output["rows"][0]["slowdown"] is None
    table = done("eval", "memory", "--no-same-length", *SHORT).stdout
    assert "slowdown: vanilla / one lane" not in table


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--cache", 40, "--positions", 60, "--batch-size", 2],
            "--cache 40 exceeds the 30 tokens of a lane; give at most that, or a smaller --batch-size",
        ),
        (
            ["--dynamic", "--losses", "x.h5"],
            "--losses writes the losses of the model alone; leave out --cache and --dynamic",
        ),
    ],
)
def test_an_impossible_adaptation_is_refused(here, options, message):
    assert refusal("eval", "byte", *options) == message


def test_dynamic_evaluation_in_fp16_is_refused(here):
    workspace = Workspace(**HERE)
    as_on_a_gpu = dataclasses.replace(workspace.open_run("byte"), precision="fp16")  # a CPU refuses it before
    with pytest.raises(UsageError) as caught:
        evaluate_opened(as_on_a_gpu, EvalOptions(dynamic=True), workspace)
    message = "--dynamic trains the model, which fp16 is too coarse for; add --precision bf16 or fp32"
    assert (str(caught.value), caught.value.exit_code) == (message, 2)


@pytest.mark.parametrize(
    ("missing", "options"),
    [("valid", ["--cache", 9]), ("valid", ["--dynamic"]), ("train", ["--cache", 9, "--dynamic"])],
)
def test_a_missing_split_that_an_adaptation_needs_is_reported_before_scoring(here, missing, options):
    (here / f"novel/{missing}.txt").unlink()
    done("prepare", "novel", "--force")
    message = refusal("eval", "byte", *options, *SHORT, code=1)
    assert message.startswith(f"data/novel.h5 has no {missing} split (it holds ")


def test_possible_training_data_is_reported_once(here):
    (here / "novel/train.txt").write_text("the fox\n" * 60)
    done("prepare", "novel", "--force")
    (here / "strange.txt").write_text("the fox\n" * 9)
    assert "may contain" not in done("eval", "byte", "--text", "strange.txt").stderr
    text = ["--text", "strange.txt", "--mem-len", "auto"]  # searched on valid
    for options in (["--cache", 9, "--dynamic"], ["--mem-len", "auto"], text):
        assert done("eval", "byte", *options, *SHORT).stderr.count("may contain training data of that run") == 1


def test_searching_and_scoring_the_same_split_is_reported(here):
    result = done("eval", "byte", "--split", "valid", "--cache", 20, *SHORT)
    assert "valid is used both for the search and for the result" in result.stderr
    assert "valid is used both" not in done("eval", "byte", "--cache", 20, *SHORT).stderr
