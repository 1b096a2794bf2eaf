"""The history of a run: its state, best and last results, speed and hours, damaged files."""

import dataclasses
import json

import pytest

from tests.runs.test_run_directory import FACTS
from txlcli.config import recipe
from txlcli.errors import RunError
from txlcli.runs import history, lifecycle, log_file, run_directory, summaries
from txlcli.runs.run_directory import Run
from txlcli.system.checkpoint_header import write_header

SETTINGS = recipe.load("enwik8", ["train.max_steps=40", "train.batch_size=3", "train.seg_len=7"])
TOKENS = 3 * 7


def report(step, loss_nats=2.0, **more):
    return {"kind": "train", "step": step, "loss_nats": loss_nats, "tokens_per_s": 42.0, **more}


def valid(step, loss_nats, **more):
    return {"kind": "valid", "step": step, "loss_nats": loss_nats, "tokens": 11, "seconds": 5.0, **more}


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = Run(run_directory.Path("runs/mine"), **{**FACTS, "settings": SETTINGS})
    lifecycle.create(run, "{}")
    return run


def save(run, name="last.safetensors", **state):
    header = json.dumps({"__metadata__": write_header(state, {})}).encode()
    (run.directory / name).write_bytes(len(header).to_bytes(8, "little") + header)


def read(run, *reports, evals=()):
    for line in reports:
        run.append_metrics(line)
    if evals:
        save(run, "best.safetensors", step=20)
        history.record(run, evals)
    return history.read(run)


def test_a_run_without_files_has_an_empty_history(run):
    past = history.read(run)
    assert (past.reports, past.evals, past.step, past.state) == ((), (), 0, "interrupted")
    assert (past.best_valid, past.last("valid"), past.last("train"), past.tokens_per_s) == (None,) * 4


@pytest.mark.parametrize(
    ("saved", "reported", "state"), [(40, 40, "finished"), (20, 20, "unfinished"), (20, 30, "interrupted")]
)
def test_the_state_follows_from_the_saved_and_the_reported_step(run, saved, reported, state):
    save(run, step=saved, validated=saved)
    past = read(run, report(reported))
    assert (past.step, past.state) == (saved, state)


def test_a_run_without_its_last_validation_or_without_a_checkpoint_has_not_finished(run):
    past = read(run, report(10), report(40))
    assert (past.step, past.state) == (40, "interrupted")
    save(run, step=40, validated=20)
    assert history.read(run).state == "unfinished"


def test_the_last_checkpoint_is_preferred_to_the_best_one_which_may_be_imported(run):
    save(run, "best.safetensors", step=0, imported_from="elsewhere")
    assert history.read(run).state == "imported"
    save(run, "best.safetensors", step=20)
    assert history.read(run).step == 20
    save(run, step=30)
    assert history.read(run).step == 30


def test_best_and_last_validation_are_distinguished(run):
    past = read(run, report(10), valid(10, 1.5), report(20), valid(20, 1.25), valid(30, 1.75), valid(35, 2.5))
    assert past.best_valid["step"] == 20
    assert past.last("valid")["step"] == 35
    assert past.last("train")["step"] == 20


def evaluated(loss_nats, **changed):
    common = {"split": "test", "whole": True, "loss_nats": loss_nats, "step": 20, "weights": "best.safetensors"}
    return {**common, **changed}


def test_only_results_of_whole_splits_by_the_model_alone_count(run):
    evals = [
        evaluated(1.75),
        evaluated(1.5, method="model"),
        evaluated(1.25, method="cache 100"),
        evaluated(1.125, whole=False),
        evaluated(1.0, split="valid"),
        evaluated(0.875, split=None),
    ]
    past = read(run, evals=evals)
    assert [line["loss_nats"] for line in past.evals_of("test")] == [1.75, 1.5]
    assert [line["loss_nats"] for line in past.evals_of("valid")] == [1.0]
    assert past.evals_of("train") == []
    assert past.test_result[0]["loss_nats"] == 1.5


def window(loss, attn_len, effective, **more):
    return evaluated(
        loss, mem_len=0, attn_len=attn_len, attn_len_min=effective, attn_len_max=effective, stride=1, **more
    )


def memory(loss, mem_len, effective=None, **more):
    effective = effective or mem_len
    return evaluated(loss, mem_len=mem_len, attn_len_min=effective, attn_len_max=effective, **more)


VALID, WIDE, HALF = {"split": "valid"}, {"batch_size": 64}, {"batch_size": 10, "precision": "bf16"}
OF_RECIPE = {"of_recipe": True}
TEN, ON_VALID = {"batch_size": 10}, ((1.9, 64), (1.8, 128), (1.7, 512))
CHOSEN = {  # results, the loss of the test result, the number of results that it was chosen from
    "chosen on valid, where test was evaluated with the same settings": (
        [memory(1.5, 64), memory(1.4, 128), memory(1.3, 256), *(memory(*row, **VALID) for row in ON_VALID)],
        (1.4, 1),
    ),
    "the newest of the same batch size and precision": (
        (evaluated(1.5, batch_size=1), evaluated(1.4, **TEN), evaluated(1.45, **HALF), evaluated(1.6, **TEN)),
        (1.45, 3),
    ),
    "windows by the requested length": (
        (window(1.5, 400, 400), window(1.4, 420, 420), window(1.7, 400, 300, **VALID), window(1.8, 420, 420, **VALID)),
        (1.5, 1),
    ),
    "memories by the requested length": (
        (memory(1.5, 640, 500, **WIDE), memory(1.4, 64), memory(1.7, 640, **WIDE, **VALID), memory(1.8, 64, **VALID)),
        (1.5, 1),
    ),
    "the newest whose length was searched for on valid": (
        (memory(1.6, 50, chosen_on_valid=True), memory(1.5, 64), memory(1.7, 64, **VALID)),
        (1.6, 1),
    ),
    "the newest of the recipe's settings without results on valid": (
        (memory(1.5, 7, **OF_RECIPE), memory(1.45, 7, **HALF, **OF_RECIPE), memory(1.3, 9, of_recipe=False)),
        (1.45, 1),
    ),
    "the best of all without these and without results on valid": (
        (memory(1.5, 64), memory(1.4, 128), memory(1.4, 128), memory(1.8, 256)),
        (1.4, 3),
    ),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_test_result_is_that_of_the_settings_chosen_on_valid(run, name):
    evals, expected = CHOSEN[name]
    result, count = read(run, evals=evals).test_result
    assert (result["loss_nats"], count) == expected


@pytest.mark.parametrize(
    ("result", "setting"),
    [
        (memory(1.5, 64), "M = 64"),
        (memory(1.5, 64, temperature=1.0625, in_sample=True), "M = 64, temperature 1.0625, in-sample"),
        (window(1.5, 400, 400), "N = 400"),
        (window(1.5, 400, 400) | {"stride": 7}, "N = 400, S = 7"),
        (evaluated(1.5, mem_len=0, attn_len_max=None), "recurrent state"),
    ],
)
def test_a_test_result_has_its_setting(run, result, setting):
    assert summaries.summarize(read(run, evals=[result])).test_setting == setting


@pytest.mark.parametrize(
    ("result", "changes"),
    [
        (memory(1.5, 64, seg_len=32, same_length="m", max_distance=96, precision="fp32", lanes=10), [
            {"mem_len": 65}, {"seg_len": 31}, {"same_length": "off"}, {"max_distance": 97}, {"max_distance": None},
            {"precision": "bf16"}, {"batch_size": 1, "lanes": 1}, {"temperature": 1.25}, {"documents": 3},
        ]),
        (window(1.5, 400, 400, max_distance=96, precision="fp32"), [
            {"attn_len": 401}, {"stride": 2}, {"max_distance": 97}, {"precision": "bf16"}, {"temperature": 1.25},
            {"documents": 3},
        ]),
    ],
    ids=["memory", "windows"],
)  # fmt: skip
def test_the_protocol_tells_settings_apart(result, changes):
    described = [history.describe_protocol(result | change) for change in [{}, *changes]]
    assert len(set(described)) == len(described)
    varied = set().union(*changes) - {"lanes", "documents"}
    assert varied <= set(history.SETTINGS)


def test_results_on_an_earlier_version_of_the_split_do_not_count(run):
    evals = [
        evaluated(1.0, mem_len=64, split_sha256="first"),
        evaluated(1.25, mem_len=128, split_sha256="second"),
        evaluated(1.5, mem_len=64, split_sha256="second"),
        evaluated(0.5, mem_len=64, split_sha256="third", may_be_learned=True),
        evaluated(0.5, mem_len=256, split_sha256="second", may_be_learned=True),
    ]
    past = read(run, evals=evals)
    assert [line["loss_nats"] for line in past.evals_of("test")] == [1.25, 1.5]
    assert past.test_result[0]["loss_nats"] == 1.25


def test_results_of_earlier_weights_do_not_count(run):
    save(run, step=40)  # not the checkpoint that is evaluated
    evals = [
        evaluated(1.0, step=10, split="valid"),
        evaluated(1.1, step=10),
        evaluated(1.2, weights="last.safetensors"),
        evaluated(1.5),
        evaluated(1.3, step=40, weights="last.safetensors"),
    ]
    result, count = read(run, evals=evals).test_result
    assert (result["loss_nats"], count) == (1.5, 1)
    save(run, "best.safetensors", step=30)
    assert history.read(run).test_result == (None, 0)
    (run.directory / "best.safetensors").unlink()
    assert history.read(run).test_result[0]["loss_nats"] == 1.3


def test_tokens_per_second_are_all_tokens_divided_by_all_seconds(run):
    # 10 steps at 42 and 20 at 21 tokens/s: 30 x 21 tokens in 5 s and 20 s.
    past = read(run, report(10), report(30, tokens_per_s=21.0), report(35, tokens_per_s=None))
    assert past.tokens_per_s == pytest.approx(30 * TOKENS / 25)


def test_results_of_a_run_that_was_replaced_are_not_appended(run):
    with pytest.raises(RunError, match="replaced by another run"):
        history.record(dataclasses.replace(run, id="another"), [evaluated(2.0)])
    assert history.read(run).evals == ()


def test_results_are_appended_after_older_ones_and_after_a_truncated_line(run):
    history.record(run, [evaluated(2.0), evaluated(1.5)])
    history.record(run, [evaluated(1.0, name="é")])
    assert [line["loss_nats"] for line in history.read(run).evals] == [2.0, 1.5, 1.0]
    with (run.directory / "evals.jsonl").open("a") as file:
        file.write('{"trunc')
    history.record(run, [evaluated(0.5)])
    lines = (run.directory / "evals.jsonl").read_text().splitlines()
    assert lines[3] == '{"trunc'
    assert log_file.from_line(lines[4]) == run.signed(evaluated(0.5))
    assert [line["loss_nats"] for line in history.read(run).evals] == [2.0, 1.5, 1.0, 0.5]


@pytest.mark.parametrize(
    ("kept", "best", "step"),
    [
        ([report(20), valid(20, 1.25), report(40)], 1.25, 20),
        ([report(20), valid(20, 1.5), report(40)], 1.25, None),  # of another file
        ([report(40)], 1.25, None),
        ([report(20), valid(20, 1.25)], 1.25, 20),
    ],
)
def test_reports_that_were_lost_are_noticed_by_the_checkpoint(run, kept, best, step):
    settings = recipe.load("enwik8", ["train.max_steps=40", "log.every=20"])
    run = dataclasses.replace(run, settings=settings)
    save(run, step=40, validated=40, best_nats=1.25)
    past = read(run, *kept)
    summary = summaries.summarize(past)
    assert (past.best_nats, summary.best_valid_step) == (best, step)
    assert (summary.missing_reports is None) == (kept == [report(20), valid(20, 1.25), report(40)])


def test_a_report_that_was_lost_between_others_is_noticed_by_the_one_after_it(run):
    reports = [
        report(7, after=0), report(11, after=7), valid(11, 1.5, after=0), report(13, after=11),
        report(14, after=13), valid(14, 1.25, after=11), report(17, after=13), valid(17, 1.75, after=14),
    ]  # fmt: skip
    save(run, step=17, validated=17, best_nats=1.25, interval={"after": 17})
    assert read(run, *reports).missing_reports is None
    for lost in (0, 1, 2, 3, 6):
        (run.directory / "metrics.jsonl").unlink()
        assert read(run, *reports[:lost], *reports[lost + 1 :]).missing_reports is not None, lost
    (run.directory / "metrics.jsonl").unlink()
    earlier = report(14)  # of a version that wrote neither `after` nor the steps since its last report
    assert read(run, earlier, report(17, after=16), valid(17, 1.25)).missing_reports is None


@pytest.mark.parametrize("name", ["metrics.jsonl", "evals.jsonl", "last.safetensors", "best.safetensors"])
def test_a_file_of_another_run_is_noticed_by_its_id(run, name):
    other = dataclasses.replace(run, directory=run.directory.with_name("other"), id="another")
    lifecycle.create(other, "{}")
    for each in (run, other):
        save(each, step=20, run_id=each.id)
        read(each, report(20), evals=[evaluated(1.5)])
        save(each, "best.safetensors", step=20, run_id=each.id)
    (other.directory / name).replace(run.directory / name)
    with pytest.raises(RunError, match="another run"):
        history.read(run)
    without_id = dataclasses.replace(run, id=None)  # of an earlier version
    assert history.read(without_id).step == 20
