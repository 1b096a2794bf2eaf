"""txl runs: the list, the comparison, curves and differences."""

import csv
import json
import math
import os
import re
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest

from tests.cards import read_log
from tests.commands.novel import Saved, card, cells, contents, done, json_of, names_in, refusal, reports, train, txl
from tests.report.test_plots import MAGIC
from txlcli.data import loss_file
from txlcli.data.loss_file import TokenLosses
from txlcli.runs import lifecycle, log_file, run_directory
from txlcli.workflows.evaluation import result
from txlcli.workflows.evaluation.evaluate import evaluate
from txlcli.workflows.evaluation.options import EvalOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace

LN2 = 0.6931471805599453
KINDS = ("train", "valid")


def shown(name, *arguments):
    """Return the facts that `txl runs show` prints about a run."""
    return dict(cells(done("runs", "show", name, *arguments)))


def listed(*arguments):
    return {entry["name"]: entry for entry in json_of("runs", *arguments)["runs"]}


def saved_at(directory, seconds):
    for file in directory.iterdir():
        os.utime(file, (seconds, seconds))


def test_show_has_the_facts_and_the_settings_that_are_not_the_default(here):
    facts = shown("byte")
    entry = listed()["byte"]
    assert facts["parameters"] == f"{entry['parameters']:,}"
    assert facts["best valid"] == f"{entry['best_valid']:.3f} bpc at step 7"
    assert (facts["model.n_layers"], facts["train.lr"]) == ("2", "0.03")
    assert "train.schedule" not in facts
    assert json_of("runs", "show", "byte")["settings"]["train"]["schedule"] == "cosine"


def test_the_list_has_all_runs_the_most_recent_first(here):
    for seconds, name in enumerate(("word", "char", "sentencepiece", "byte"), 1_700_000_000):
        saved_at(here / "runs" / name, seconds)
    result = done("runs")
    assert result.stderr == ""
    assert "runs in runs\n" in result.stdout
    assert [row[0] for row in cells(result)] == ["byte", "sentencepiece", "char", "word"]
    assert list(listed()) == ["byte", "sentencepiece", "char", "word"]
    assert done("runs", "list").stdout == result.stdout


def test_a_row_shows_the_best_validation_and_the_last_losses(here):
    entry = listed()["byte"]
    losses = {kind: [line["loss_nats"] for line in reports("runs/byte") if line["kind"] == kind] for kind in KINDS}
    rates = [line["tokens_per_s"] for line in reports("runs/byte") if line["kind"] == "train"]
    assert min(rates) <= entry["tokens_per_s"] <= max(rates)
    assert (entry["recipe"], entry["store"], entry["state"], entry["step"]) == ("tiny", "novel", "finished", 7)
    assert entry["best_valid"] == pytest.approx(min(losses["valid"]) / LN2)
    assert entry["last_valid"] == pytest.approx(losses["valid"][-1] / LN2)
    assert entry["last_train"] == pytest.approx(losses["train"][-1] / LN2)
    assert (entry["best_valid_step"], entry["test"], entry["test_setting"]) == (7, None, None)
    lowest = min(line["loss_nats"] for line in reports("runs/word") if line["kind"] == "valid")
    assert (listed()["word"]["metric"], listed()["word"]["best_valid"]) == ("ppl", pytest.approx(math.exp(lowest)))
    (row,) = (row for row in cells(done("runs")) if row[0] == "byte")
    assert row[:4] == ["byte", "finished", f"{entry['best_valid']:.3f} bpc", "-"]


@pytest.mark.parametrize("searched", [True, False])
def test_the_test_result_to_quote_is_that_of_the_settings_of_the_recipe(here, searched):
    train("eval.temperature=auto" if searched else "eval.temperature=1.25", name="own")
    (row,) = json_of("eval", "own")["rows"]
    done("eval", "own", "--temperature", 0.75)
    done("eval", "own", "--seg-len", 3)
    assert listed()["own"]["test"] == pytest.approx(row["bpc"])
    assert (listed()["own"]["test_readings"], "temperature 0.75" in shown("own")["test"]) == (1, False)


def test_a_stopped_run_is_unfinished_and_a_killed_one_interrupted(here):
    done("train", "tiny.toml", "--name", "half", "--max-steps", 3)
    assert (listed()["half"]["state"], listed()["half"]["step"]) == ("unfinished", 3)
    assert {row[0]: row for row in cells(done("runs"))}["half"][1] == "unfinished 43%"
    assert (shown("half")["state"], shown("half")["next"]) == (
        "unfinished (step 3 of 7)",
        "txl train --resume runs/half",
    )
    with (here / "runs/half/metrics.jsonl").open("a") as file:
        file.write(log_file.to_line({"kind": "train", "step": 5, "loss_nats": 3.0}))
    assert (listed()["half"]["state"], listed()["half"]["step"]) == ("interrupted", 3)
    done("train", "--resume", "half")
    assert (listed()["half"]["state"], listed()["half"]["step"]) == ("finished", 7)


def test_the_next_command_of_a_run_holds_with_any_folder_of_runs(here):
    done("train", "tiny.toml", "--name", "half", "--max-steps", 3, "--runs-dir", "other")
    command = shown("half", "--runs-dir", "other")["next"]
    assert command == "txl train --resume other/half"
    done(*command.split()[1:])
    assert listed("--runs-dir", "other")["half"]["state"] == "finished"


def test_a_damaged_run_is_named_and_does_not_hide_the_others(here):
    path = here / "runs/char/metrics.jsonl"
    path.write_text(path.read_text() + "nonsense\n")
    assert " is damaged; delete that line" in refusal("runs", "compare", "byte", "char", code=1)
    assert " is damaged; delete that line" in refusal("runs", "show", "char", code=1)
    (here / "runs/word/run.json").write_text("{}")
    result = done("runs", "--json")
    char, word = sorted(result.stderr.splitlines())
    assert f"runs/char/metrics.jsonl: line {len(path.read_text().splitlines())}" in char
    assert "runs/word/run.json" in word
    states = {entry["name"]: entry["state"] for entry in json.loads(result.stdout)["runs"]}
    assert states == {"byte": "finished", "char": "damaged", "sentencepiece": "finished", "word": "damaged"}
    assert [row[1] for row in cells(done("runs"))].count("damaged") == 2


def test_compare_and_plot_say_which_run_has_lost_reports(here):
    path = here / "runs/char/metrics.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:1]))
    assert "char: metrics.jsonl has lost reports" in done("runs", "compare", "byte", "char").stdout
    assert "runs/char: metrics.jsonl has lost reports" in done("runs", "plot", "byte", "char").stderr


def test_no_result_is_added_to_the_results_of_another_run(here):
    done("eval", "word", "--mem-len", "0", "--positions", "20")
    results = (here / "runs/word/evals.jsonl").read_text()
    (here / "runs/byte/evals.jsonl").write_text(results)
    assert "belongs to another run" in refusal("eval", "byte", "--mem-len", "0", "--positions", "20", code=1)
    assert (here / "runs/byte/evals.jsonl").read_text() == results


@pytest.mark.parametrize("option", [["--json"], ["--runs-dir", "elsewhere"], ["--runs-dir", "runs"], ["--quiet"]])
def test_an_option_before_the_command_is_rejected(here, option, monkeypatch):
    assert f"{option[0]} must come last" in refusal("runs", *option, "compare", "byte", "char")
    monkeypatch.setenv("TXL_RUNS_DIR", "runs")
    done("runs", "compare", "byte", "char")


def recorded(name):
    return read_log(Path("runs", name, "evals.jsonl"))


def test_an_evaluation_is_recorded_in_the_run_directory_and_changes_nothing_else(here):
    before = contents(here / "runs/byte")
    output = json_of("eval", "byte", "--mem-len", "0,5")
    rows = recorded("byte")
    assert [row["mem_len"] for row in rows] == [0, 5]
    for row, shown in zip(rows, output["rows"], strict=True):
        shown.pop("best")
        same = {"step", "text", "unit", "metric", "conventions", "split_sha256", "may_be_learned", "seg_len"}
        same |= {"max_distance", "same_length", "precision"}
        assert row.items() >= (shown | {key: output[key] for key in same}).items()
        assert (row["split"], row["whole"], row["weights"]) == ("test", True, "best.safetensors")
        assert "best" not in row
        assert row["when"].endswith("+00:00")
    best = min(rows, key=lambda row: row["loss_nats"])
    entry = listed()["byte"]
    assert (entry["test"], entry["test_mem_len"]) == (pytest.approx(best["loss_nats"] / LN2), best["mem_len"])
    assert contents(here / "runs/byte").keys() - before.keys() == {Path("evals.jsonl")}
    assert contents(here / "runs/byte").items() >= before.items()


def test_a_result_that_cannot_be_recorded_is_reported(here):
    (here / "runs/byte/evals.jsonl").mkdir()
    result = done("eval", "byte", "--json")
    assert json.loads(result.stdout)["rows"]
    assert "runs/byte/evals.jsonl: result not recorded" in result.stderr


def test_the_result_of_a_run_that_was_replaced_meanwhile_is_not_recorded(here):
    told = []
    reporter = Reporter(lambda message, *_: told.append(message))
    workspace = Workspace(device="cpu", reporter=reporter)
    evaluated = evaluate(
        workspace.open_run(run_directory.find("byte", workspace.runs_dir)), EvalOptions(timed=False), workspace
    )
    shutil.rmtree("runs/byte")
    shutil.copytree("runs/char", "runs/byte")
    result.record(evaluated)
    assert told[-1] == "result not recorded: runs/byte was replaced by another run meanwhile"
    assert "evals.jsonl" not in os.listdir("runs/byte")


@pytest.fixture
def two(here):
    """Train another run with twice the learning rate, and stop it early."""
    change = ["--set", "train.lr=6e-2", "--set", "model.norm=pre"]
    done("train", "tiny.toml", "--name", "fast", "--max-steps", 5, *change)
    return here


def test_only_differing_settings_are_shown(two):
    output = json_of("runs", "compare", "byte", "fast")
    assert output["settings"] == {"model.norm": ["post", "pre"], "train.lr": [0.03, 0.06]}
    assert output["same_text"] is True
    rows = {row[0]: row[1:] for row in cells(done("runs", "compare", "byte", "fast"))}
    assert rows["model.norm"] == ["post", "pre"]
    assert rows["train.lr"] == ["0.03", "0.06"]
    assert rows["state"] == ["finished", "unfinished"]
    assert rows["step"] == ["7", "5"]
    assert max(map(len, done("runs", "compare", "byte", "fast").stdout.splitlines())) <= 80
    assert "train.max_steps" not in rows


def test_notes_report_the_same_settings_and_different_texts(here):
    shutil.copytree("runs/byte", "runs/again")
    result = done("runs", "compare", "byte", "again")
    assert "The settings are the same." in result.stdout
    assert "vocabularies differ" not in result.stdout
    result = done("runs", "compare", "byte", "word")
    assert "vocabularies differ: only bits/byte" in result.stdout
    (row,) = (row for row in cells(result) if row[0] == "best valid")
    assert [cell.split()[1] for cell in row[1:]] == ["bpc", "ppl"]
    done("eval", "sentencepiece")
    (row,) = (row for row in cells(done("runs", "compare", "byte", "sentencepiece")) if row[0] == "test bits/byte")
    (evaluated,) = map(json.loads, Path("runs/sentencepiece/evals.jsonl").read_text().splitlines())
    assert row[1:] == ["-", f"{evaluated['bits_per_byte']:.3f}"]
    assert json_of("runs", "compare", "byte", "word")["same_text"] is False


def test_runs_on_two_texts_of_one_store_are_not_averaged(here):
    Path("novel/valid.txt").write_text("the lazy owl jumps over the fox\n" * 9)
    done("prepare", "novel", "--force")
    done("train", "tiny.toml", "--name", "other", "--seed", 5)
    output = json_of("runs", "compare", "byte", "other")
    assert (output["same_text"], output["seeds"]) == (False, [])


def test_runs_of_one_name_are_compared_by_their_folders(here):
    done("train", "tiny.toml", "--name", "byte", "--runs-dir", "other", "--seed", 5, "--set", "published.parameters=1")
    result = done("runs", "compare", "byte", "other/byte", "char")
    headings = next(line for line in result.stdout.splitlines() if "other/byte" in line)
    assert [cell.strip() for cell in headings.strip("┃").split("┃")] == ["", "runs/byte", "other/byte", "char"]
    (group,) = json_of("runs", "compare", "byte", "other/byte")["seeds"]
    assert group["runs"] == ["runs/byte", "other/byte"]


def test_seeds_train_one_run_each_and_are_compared_by_mean_and_deviation(here):
    done("train", "tiny.toml", "--seeds", 3, "--name", "many", "--seed", 5)
    names = [f"many-seed{seed}" for seed in (5, 6, 7)]
    assert [card(f"runs/{name}")["settings"]["train"]["seed"] for name in names] == [5, 6, 7]
    done("train", "tiny.toml", "--name", "alone", "--seed", 6)
    assert Saved(Path("runs/alone/best.safetensors")) == Saved(Path("runs/many-seed6/best.safetensors"))
    output = json_of("runs", "compare", *names)
    assert json_of("runs", "compare", *names, "alone")["seeds"] == output["seeds"]  # a repetition is no other seed
    (group,) = output["seeds"]
    valid = [run["best_valid"] for run in output["runs"]]
    assert group["runs"] == names
    assert group["losses"] == {"valid": [pytest.approx(statistics.mean(valid)), pytest.approx(statistics.stdev(valid))]}
    assert "mean +- deviation: valid " in done("runs", "compare", *names).stdout
    done("train", "tiny.toml", "--name", "stopped", "--seed", 8, "--max-steps", 5)
    assert json_of("runs", "compare", *names, "stopped")["seeds"] == output["seeds"]
    for name, mem_lens in zip(names, ("0", "5", "0,3"), strict=True):
        done("eval", name, "--mem-len", mem_lens)
    compared = done("runs", "compare", *names)
    rows = {row[0]: row[1:] for row in cells(compared)}
    assert rows["with"][:2] == ["M = 0", "M = 5"]
    assert rows["best of"] == ["-", "-", "2"]
    assert "test has different settings: (M = 0), (M = 5)." in compared.stdout
    assert "many-seed7 exists" in refusal("train", "tiny.toml", "--seeds", 2, "--name", "many", "--seed", 7, code=1)
    assert not Path("runs/many-seed8").exists()
    assert "--seeds" in refusal("train", "tiny.toml", "--seeds", 2, "--dry-run")


def test_the_curves_of_one_run_are_plotted_into_its_folder(here):
    done("runs", "plot", "byte")
    assert Path("runs/byte/curves.png").read_bytes().startswith(MAGIC[".png"])
    done("runs", "plot", "byte")
    assert run_directory.OWN_FILES.fullmatch("curves.png")  # deleted with the run
    done("runs", "plot", "byte", "--plot", "curves.svg")
    for command in ("plot", "compare"):
        assert "curves.svg exists" in refusal("runs", command, "byte", "again", "--plot", "curves.svg")
    done("runs", "plot", "byte", "--plot", "curves.svg", "--force")


def losses_file(path, losses, tokens):
    """Write a file of losses as txl eval does."""
    results = [TokenLosses("mem_len", 0, losses + 1, {}), TokenLosses("mem_len", 5, losses, {})]
    loss_file.write(path, tokens, results, {"run": "runs/one"})


@pytest.mark.parametrize(("gain", "significant"), [(0.0, False), (0.2, True)])
def test_a_difference_of_losses_is_more_than_chance_if_its_interval_excludes_0(here, gain, significant):
    generator = np.random.default_rng(1)
    tokens = generator.integers(0, 9, 6_007)
    first = generator.gamma(2.0, 1.0, 6_007).astype(np.float32)
    second = (first - gain + generator.normal(0.0, 0.5, 6_007)).astype(np.float32)
    losses_file(Path("a.h5"), first, tokens)
    losses_file(Path("b.h5"), second, tokens)
    output = json_of("runs", "difference", "a.h5", "b.h5")
    assert output["significant"] == significant
    assert output["difference_nats"] == pytest.approx(float((second - first).mean()), abs=1e-6)
    assert output["low_nats"] < output["difference_nats"] < output["high_nats"]
    assert (output["second"]["evaluation"], output["second"]["run"]) == ("mem_len_5", "runs/one")
    chance = "is more than chance" if significant else "may be chance"
    table = done("runs", "difference", "a.h5", "b.h5").stdout
    assert chance in table
    assert "│ b.h5 (runs/one) " in table


TRAIN_SPLIT = ("--split", "train")


WORDS = [f"w{number}" for number in range(3001)]


def write_words(path, words, bits, column="bits_M5", unknown=0, documents=()):
    """Write a file of words, which begin 10 characters apart, once for each document."""
    lines = ["\t".join(["word", "start", "end", "tokens", "unknown", *(["document"] * bool(documents)), column])]
    for document in documents or [()]:
        for number, (word, value) in enumerate(zip(words, bits, strict=True)):
            facts = (word, 10 * number, 10 * number + len(word), 1, unknown, *document, value)
            lines.append("\t".join(map(str, facts)))
    Path(path).write_text("\n".join(lines) + "\n")


def test_models_with_different_tokens_are_compared_word_by_word(here):
    first, second = np.random.default_rng(2).uniform(0, 9, (2, 3001)).round(6)
    write_words("a.tsv", WORDS, first)
    write_words("b.tsv", WORDS, second, column="bits_N64")
    output = json_of("runs", "difference", "a.tsv", "b.tsv")
    assert output["difference_nats"] == pytest.approx((second - first).mean() * np.log(2))
    assert (output["unit"], output["tokens"], output["second"]["evaluation"]) == ("word", 3001, "attn_len_64")
    write_words("state.tsv", WORDS, second, column="bits_state")
    assert (
        json_of("runs", "difference", "a.tsv", "state.tsv", "--mem-len", 5)["second"]["evaluation"] == "recurrent state"
    )
    assert "leave out --mem-len" in refusal("runs", "difference", "state.tsv", "state.tsv", "--mem-len", 5)
    lines = Path("b.tsv").read_text().splitlines(keepends=True)
    Path("b.tsv").write_text("".join(lines[:5] + lines[6:]))  # whose tokens cover two words
    assert json_of("runs", "difference", "a.tsv", "b.tsv")["tokens"] == 3000
    assert "bits/word" in done("runs", "difference", "a.tsv", "b.tsv").stdout


def test_a_word_of_any_length_is_compared(here):
    csv.field_size_limit(131_072)  # as in a new process
    write_words("long.tsv", ["=" * 140_000, *WORDS], [1.0] * 3002)
    assert json_of("runs", "difference", "long.tsv", "long.tsv")["tokens"] == 3002


def test_words_of_different_parts_of_a_text_are_not_compared(here):
    bits = [1.0] * 3001
    write_words("a.tsv", WORDS, bits)
    write_words("part.tsv", WORDS[:2000], bits[:2000])
    write_words("one.tsv", WORDS, bits, documents=[("one",)])
    write_words("both.tsv", WORDS, bits, documents=[("one",), ("two",)])
    for pair in (("a.tsv", "part.tsv"), ("both.tsv", "one.tsv")):
        assert "different parts" in refusal("runs", "difference", *pair)


def test_words_that_cannot_be_compared_are_rejected(here):
    words = ["one", "<unk>", "two"]
    write_words("a.tsv", words, [1, 2, 3])
    write_words("b.tsv", ["one", "<unk>", "three"], [1, 2, 3])
    write_words("unknown.tsv", words, [1, 2, 3], unknown=1)
    Path("no.tsv").write_text("word\n")
    for words, telling in (
        ("b.tsv", "different texts"),
        ("unknown.tsv", "vocabulary"),
        ("no.tsv", "not a file of words"),
        ("absent.tsv", "cannot be read"),
        ("byte", "compared with those of another such file"),
        ("a.tsv", "at least"),
        ("a.tsv --mem-len 6", "mem_len_5"),
        ("a.tsv --split valid", "--split"),
    ):
        assert telling in refusal("runs", "difference", "a.tsv", *words.split())


def test_a_difference_of_runs_is_that_of_their_evaluations(here):
    done("eval", "byte", "--mem-len", "0,5", "--losses", "byte.h5", *TRAIN_SPLIT)
    of_files = json_of("runs", "difference", "byte.h5", "byte.h5", "--mem-len", "0,5")
    of_runs = json_of("runs", "difference", "byte", "byte", "--mem-len", "0,5", *TRAIN_SPLIT)
    assert of_runs["difference_nats"] == pytest.approx(of_files["difference_nats"], rel=1e-4)
    assert of_runs["difference_nats"] != 0
    done("eval", "byte", "--mem-len", 5, "--losses", "byte.hdf5", *TRAIN_SPLIT)
    mixed = json_of("runs", "difference", "byte", "byte.hdf5", "--mem-len", 5, *TRAIN_SPLIT)
    assert mixed["difference_nats"] == pytest.approx(0, abs=1e-6)
    assert (mixed["first"]["file"], mixed["second"]["file"]) == (None, "byte.hdf5")
    assert "runs/byte" in done("runs", "difference", "byte", "byte.h5", "--mem-len", 5, *TRAIN_SPLIT).stdout
    assert "different stores" in refusal("runs", "difference", "byte", "char")
    assert "no losses with mem_len_7" in refusal("runs", "difference", "byte.h5", "byte", "--mem-len", 7)
    assert "two, one for each" in refusal("runs", "difference", "byte", "byte", "--mem-len", "1,2,3")


def test_a_difference_names_the_temperature_of_each_evaluation(here):
    done("eval", "byte", "--mem-len", 5, "--temperature", 1.5, "--losses", "warm.h5", *TRAIN_SPLIT)
    done("eval", "byte", "--attn-len", 5, "--temperature", 1.25, "--losses", "windows.h5", *TRAIN_SPLIT)
    pair = ("runs", "difference", "byte", "warm.h5", *TRAIN_SPLIT)
    output = json_of(*pair)
    assert [output[source]["temperature"] for source in ("first", "second")] == [1, 1.5]
    shown = done(*pair).stdout
    assert "mem_len_5, temperature 1.5 " in shown
    assert shown.count("temperature") == 1
    windows = json_of("runs", "difference", "warm.h5", "windows.h5")
    assert windows["second"]["temperature"] == 1.25


def test_windows_of_different_lengths_are_compared_only_on_request(here):
    for name, lengths in (("five.h5", "5"), ("seven.h5", "7"), ("both.h5", "7,5")):
        done("eval", "byte", "--attn-len", lengths, "--losses", name, *TRAIN_SPLIT)
    assert "N = 5, and seven.h5 with N = 7" in refusal("runs", "difference", "five.h5", "seven.h5")
    told = json_of("runs", "difference", "five.h5", "both.h5", "--mem-len", "5,7")
    assert told["second"]["evaluation"] == "attn_len_7"
    assert json_of("runs", "difference", "five.h5", "both.h5", "--mem-len", 5)["difference_nats"] == 0


def test_different_memory_lengths_are_compared_only_on_request(here):
    train("eval.mem_len=7", name="other")
    message = refusal("runs", "difference", "byte", "other")
    assert "M = 7" in message
    assert "--mem-len" in message
    result = json_of("runs", "difference", "byte", "other", "--mem-len", "0,7", *TRAIN_SPLIT)
    assert result["second"]["evaluation"] == "mem_len_7"
    table = done("runs", "difference", "byte", "other", "--mem-len", "0,7", *TRAIN_SPLIT).stdout
    assert re.search(r"│ runs/other +│ +mem_len_7 ", table)


def test_losses_that_cannot_be_paired_are_rejected(here):
    tokens = np.arange(3_001)
    losses_file(Path("a.h5"), np.ones(3_001, np.float32), tokens)
    losses_file(Path("b.h5"), np.ones(3_001, np.float32), tokens + 1)
    losses_file(Path("short.h5"), np.ones(7, np.float32), tokens[:7])
    for files, telling in (
        (("a.h5", "b.h5"), "different tokens"),
        (("short.h5", "short.h5"), "at least 2,000"),
        (("a.h5", "data/novel.h5"), "not a file of losses"),
        (("a.h5", "none.h5"), "not a file of losses (no such file)"),
        (("a.h5", "tiny.toml"), "unknown run"),
    ):
        assert telling in refusal("runs", "difference", *files)


def test_a_run_without_reports_is_not_plotted(two):
    (two / "runs/fast/metrics.jsonl").unlink()
    done("runs", "compare", "byte", "fast")
    assert "no training reports" in refusal("runs", "compare", "byte", "fast", "--plot", "curves.png", code=1)
    refused = refusal("runs", "plot", "fast", code=1)
    assert "give a run that has" in refused
    assert "--plot" not in refused  # which was not given
    assert not Path("curves.png").exists()


@pytest.mark.parametrize(
    ("words", "telling"),
    [("byte", "two or more runs"), ("byte runs/byte", "named twice"), ("byte word --plot c.png", "one metric")],
)
def test_wrong_options_of_compare_are_rejected(here, words, telling):
    assert telling in refusal("runs", "compare", *words.split())
    assert not list(here.glob("c.*"))


def test_changed_settings_of_a_resumed_run_are_reported_and_recorded(here):
    done("train", "tiny.toml", "--name", "stretched", "--set", "train.max_steps=2")
    stderr = done("train", "--resume", "stretched", "--set", "train.max_steps=4", "--set", "train.clip=none").stderr
    assert "train.max_steps is now 4; it was 2" in stderr.splitlines()
    assert "learning rate" not in stderr  # half of it, before and after
    train("train.max_steps=4", "train.clip=none", name="straight")
    change = {"step": 2, "settings": {"train.max_steps": [2, 4], "train.clip": [0.25, "none"]}}
    output = json_of("runs", "compare", "stretched", "straight")
    assert [one["changes"] for one in output["runs"]] == [[change], []]
    assert ["settings changed", "at 2", "-"] in cells(done("runs", "compare", "stretched", "straight"))
    done("train", "--resume", "stretched", "--set", "train.max_steps=5", "--set", "train.clip=0.25")
    assert [one["step"] for one in card("runs/stretched")["changes"]] == [2, 4]


@pytest.mark.parametrize("limit", [["--max-minutes", 0], ["--max-steps", 5]])
def test_a_longer_schedule_does_not_make_the_rate_of_the_warm_up_jump(here, limit):
    warm_up = ["--set", "train.warmup_steps=6", "--set", "train.schedule=constant"]
    done("train", "tiny.toml", *warm_up, *limit)
    stderr = done("train", "--resume", "tiny", "--set", "train.max_steps=8").stderr
    assert "train.max_steps is now 8; it was 7" in stderr.splitlines()
    assert "jumps" not in stderr


def test_a_warm_up_that_is_longer_than_the_schedule_is_noted_before_and_after_a_stop(here):
    changes = ("train.warmup_steps=6", "train.schedule=constant", "train.average=mean", "train.average_from=4")
    new = ["tiny.toml", "--max-steps", 2, *(f"--set={change}" for change in changes)]
    for options in (new, ["--resume", "tiny"]):
        stderr = done("train", *options).stderr
        assert "train.warmup_steps 6 is longer than the schedule of 4 steps" in stderr


def test_a_rate_that_jumps_with_a_longer_schedule_is_reported(here):
    stderr = done("train", "--resume", "byte", "--set", "train.max_steps=14").stderr
    assert "jumps from 0.0015 to 0.015 " in stderr  # 3e-2 * (1 + cos(pi 6/7)) / 2, and of pi 7/14


def test_a_validation_on_part_of_the_split_is_marked(here):
    done("train", "tiny.toml", "--name", "part", "--set", "train.valid_tokens=30", "--set", "train.max_steps=2")
    assert listed()["part"]["valid_tokens"] == 30
    assert listed()["byte"]["valid_tokens"] is None
    assert shown("part")["best valid"].endswith(" at step 2, on 30 tokens")
    assert " bpc on 30 " in done("runs").stdout
    done("train", "tiny.toml", "--name", "all", "--set", "train.valid_tokens=1_000_000", "--set", "train.max_steps=2")
    assert listed()["all"]["valid_tokens"] is None


def test_a_run_is_deleted_after_a_yes_and_the_files_of_the_user_are_kept(here):
    for answer in ("n\n", ""):
        assert "nothing was deleted" in txl("runs", "delete", "byte", stdin=answer).stderr
    assert Path("runs/byte/last.safetensors").is_file()
    Path("runs/byte/notes").mkdir()
    Path("runs/byte/notes/mine.txt").write_text("mine")
    assert done("runs", "delete", "byte", stdin="y\n").stdout.splitlines()[-1].endswith("runs/byte/notes/mine.txt")
    assert [path.name for path in Path("runs/byte").rglob("*")] == ["notes", "mine.txt"]
    Path("runs/char/run.json").write_text("damaged")
    done("runs", "delete", "char", "runs/word", "--yes")
    assert [name for name in names_in(Path("runs")) if name[0] != "."] == ["byte", "sentencepiece"]


def test_a_link_and_what_is_not_a_run_are_not_deleted(here):
    Path("runs/link").symlink_to("byte")
    assert "is a link" in refusal("runs", "delete", "link", "--yes", code=1)
    assert "unknown run" in refusal("runs", "delete", "data", "--yes")
    with lifecycle.locked(Path("runs/byte")):
        assert "another process" in refusal("runs", "delete", "byte", "--yes", code=1)
        result = txl("runs", "delete", "char", "byte", stdin="y\n")
        assert "another process" in result.stderr
        assert "delete?" not in result.stderr
    assert "twice" in refusal("runs", "delete", "char", "runs/char", "--yes")
    for name in ("byte", "char"):
        assert Path(f"runs/{name}/last.safetensors").is_file()


def test_runs_without_a_checkpoint_are_pruned(here):
    assert "every run" in done("runs", "prune").stderr
    for path in Path("runs/char").glob("*.safetensors"):
        path.unlink()
    with lifecycle.locked(Path("runs/char")):  # it was just started
        assert json_of("runs", "prune", "--yes") == {"deleted": [], "kept": []}
    assert json_of("runs", "prune", "--yes") == {"deleted": ["runs/char"], "kept": []}
    assert set(listed()) == {"byte", "word", "sentencepiece"}


def test_a_folder_of_another_program_with_the_names_of_a_run_is_kept(here):
    other = Path("runs/other")
    other.mkdir()
    for name in ("run.json", "metrics.jsonl", "vocab.json"):
        (other / name).write_text('{"experiment": 1}\n')
    assert "not written by txl" in refusal("runs", "delete", "other", "--yes", code=1)
    assert "not written by txl" in refusal("train", "tiny.toml", "--name", "other", "--force", code=1)
    assert json_of("runs", "prune", "--yes") == {"deleted": [], "kept": []}
    assert len(list(other.iterdir())) == 3
