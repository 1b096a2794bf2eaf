"""Commands with runs of other architectures: LSTM, QRNN, the Compressive and the Recurrent Memory Transformer."""

import csv
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import txlcli
from tests.commands.novel import (
    RMT,
    compressed_and_restored,
    done,
    json_of,
    recipe_of,
    refusal,
    start,
    train,
    write_texts,
)
from tests.commands.processes import ended
from tests.commands.test_eval import cells, headings
from txlcli.errors import UsageError

ARCHS = ("lstm", "qrnn")
COMPRESSIVE = ["model.arch=compressive", "model.compressed_len=4", "model.compression_rate=5", "eval.same_length=off"]
SHORT = ["--positions", 60, "--batch-size", 2]


@pytest.fixture(scope="module")
def trained_others(tmp_path_factory):
    """Make a store of the novel, and a trained run of each architecture, named after it."""
    directory = tmp_path_factory.mktemp("others") / "here"
    write_texts(directory)
    where = ["--data-dir", directory / "data"]
    done("prepare", directory / "novel", *where)
    where += ["--runs-dir", directory / "runs"]
    for arch in ARCHS:
        (directory / f"{arch}.toml").write_text(recipe_of(arch, "d_hidden = 11"))
        done("train", directory / f"{arch}.toml", *where)
    for name, changes in {"compressive": [*COMPRESSIVE, "eval.compressed_len=3"], "rmt": RMT}.items():
        done("train", directory / "tiny.toml", "--name", name, *(f"--set={change}" for change in changes), *where)
    return directory


@pytest.fixture
def others(trained_others, tmp_path, monkeypatch):
    """Make a copy of the novel and of these runs the current folder."""
    shutil.copytree(trained_others, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_bits_of_words_with_a_recurrent_state_have_no_memory_length(others):
    Path("story.txt").write_text("the fox and the owl\n")
    (told,) = json_of("eval", "lstm", "--text", "story.txt", "--words", "words.tsv")["rows"]
    with Path("words.tsv").open(newline="") as file:
        total = sum(float(row["bits_state"]) for row in csv.DictReader(file, delimiter="\t"))
    assert total == pytest.approx(told["bpc"] * told["tokens"], abs=1e-4)


@pytest.mark.parametrize("arch", [*ARCHS, "rmt", "compressive"])
def test_a_reader_that_gets_one_token_at_a_time_predicts_what_is_scored(others, arch):
    if arch == "compressive":  # segments of L tokens, of which several leave the memory at a time
        train(*COMPRESSIVE, "eval.seg_len=15", name="long")
        arch = "long"
    run = txlcli.load(arch)
    text = "the fox and the owl saw the fox" * 3
    ids = torch.from_numpy(run.vocab.encode(text))
    reader = run.reader()
    losses = []
    for token, target in itertools.pairwise(ids):
        log_probs = reader.log_probs(reader.read(token[None, None]))
        losses.append(-float(log_probs[0, 0, target]))
    np.testing.assert_allclose(losses, run.score(text).loss_nats, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("arch", ARCHS)
def test_training_reports_and_saves_the_recurrent_state(others, arch):
    result = done("train", f"{arch}.toml", "--name", "again")
    assert "batches of 3 x 5 tokens, recurrent state, 7 steps" in result.stderr
    tensors = load_file(others / "runs/again/last.safetensors")
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if name.startswith("memory.")}
    last = {"lstm": (3, 8), "qrnn": (3, 0, 11)}[arch]
    second = {"lstm": (3, 11), "qrnn": (3, 1, 8)}[arch]
    assert shapes == {"memory.0": (3, 11), "memory.1": second, "memory.2": (3, 8), "memory.3": last}
    assert any(tensor.count_nonzero() for name, tensor in tensors.items() if name.startswith("memory."))


@pytest.mark.parametrize("arch", ARCHS)
def test_evaluation_has_one_row_without_memory_length_or_slowdown(others, arch):
    table, told = done("eval", arch), json_of("eval", arch)
    (row,) = told["rows"]
    assert headings(table) == ["attention", "bpc", "ppl", "ms/token"]
    (line,) = cells(table)
    assert line[:3] == ["state", f"{row['bpc']:.3f}", f"{row['ppl']:.3f}"]
    assert "The recurrent state is carried along the text. L = 5, fp32; 3 lanes" in table.stdout
    assert (row["attn_len_min"], row["attn_len_max"], row["slowdown"]) == (None, None, None)
    assert (told["max_distance"], told["same_length"]) == (None, None)
    done("eval", arch, "--temperature", 1.25, "--batch-size", 2)
    shown = json_of("runs", "show", arch)
    assert (shown["test"], shown["test_readings"]) == (pytest.approx(row["bpc"]), 1)  # of the recipe's settings


def test_speed_measures_all_but_table_9(others):
    result = done("speed", "lstm", "--repeat", 1)
    assert "Table 9 is left out: a model with a recurrent state has no attention length" in result.stderr
    assert "XL" not in result.stdout
    assert "run runs/lstm on cpu (" in result.stdout
    told = json_of("speed", "qrnn.toml", "--repeat", 1)
    assert told["slowdown"] == []
    assert [row["work"] for row in told["throughput"]] == [
        "evaluation, 1 lane, L 5",
        "evaluation, 3 lanes, L 5",
        "one token at a time, L 1",
        "training, 3 lanes, L 5",
    ]
    for row in told["throughput"]:
        assert 0 < row["share_of_peak"] < 1


REJECTED = {
    "eval {arch} --mem-len 0": "recurrent state",
    "eval {arch} --plot curve.svg": "recurrent state",
    "probe {arch} --mem-len 4": "recurrent state",
    "compress {arch} novel/test.txt out --mem-len 4": "recurrent state",
    "runs difference {arch} {arch} --mem-len 4": "recurrent state",
    "eval {arch} --same-length": "no attention",
    "eval {arch} --max-distance none": "no attention",
    "speed {arch} --attn-len 800": "no attention length",
}


@pytest.mark.parametrize("arch", ARCHS)
def test_options_without_meaning_for_a_recurrent_state_are_rejected(others, arch):
    for words, telling in REJECTED.items():
        assert telling in refusal(*words.format(arch=arch).split())


def test_a_recurrent_state_is_probed_with_its_state_alone(others):
    told = json_of("probe", "lstm", "--distances", 4, "--texts", 2)
    assert told["mem_len"] is None
    assert {row["word_nats_without_memory"] for row in told["rows"]} == {None}
    shown = done("probe", "lstm", "--distances", 4, "--texts", 2, "--plot", "probe.svg").stdout
    assert "L = 5, recurrent state" in shown
    with pytest.raises(UsageError, match="recurrent state"):
        txlcli.load("lstm").score("the fox", mem_len=0)


def test_a_recurrent_state_and_a_memory_are_compared_at_a_length_of_the_memory(others):
    train(name="xl")
    told = json_of("runs", "difference", "lstm", "xl", "--mem-len", 3, "--split", "train")
    assert (told["first"]["evaluation"], told["second"]["evaluation"]) == ("recurrent state", "mem_len_3")
    for name in ("lstm", "xl"):
        done("eval", name, "--split", "train", "--losses", f"{name}.h5")
    of_files = json_of("runs", "difference", "lstm.h5", "xl.h5")
    assert of_files["first"]["evaluation"] == "recurrent state"
    assert json_of("runs", "difference", "lstm.h5", "xl", "--mem-len", 3, "--split", "train")["first"]["run"]
    assert "have the text" in refusal("runs", "difference", "lstm.h5", "xl.h5", "--split", "train")


@pytest.mark.slow
def test_three_processes_read_the_lanes_of_an_lstm(others):
    arguments = ["eval", "lstm", "--batch-size", 7, "--device", "cpu", "--json"]
    stdout, _ = ended(start(*arguments, "--processes", 3), 0)
    alone, together = json.loads(done(*arguments).stdout), json.loads(stdout)
    assert together["processes"] == 3
    assert together["rows"][0]["loss_nats"] == pytest.approx(alone["rows"][0]["loss_nats"], abs=1e-6)


def test_an_evaluation_counts_the_slots_among_the_keys(others):
    rows = json_of("eval", "compressive", "--mem-len", "0,5,20", "--seg-len", 5, *SHORT)["rows"]
    assert [(row["mem_len"], row["attn_len_min"], row["attn_len_max"]) for row in rows] == [
        (0, 1, 5),
        (5, 3 + 5 + 1, 3 + 5 + 5),
        (20, 3 + 20 + 1, 3 + 20 + 5),
    ]
    assert len({row["loss_nats"] for row in rows}) == 3
    assert json_of("eval", "compressive", "--attn-len", 7, *SHORT)["rows"][0]["attn_len_max"] == 7


def test_a_forecast_states_the_parameters_of_the_compression(others):
    parts = json_of("train", "tiny.toml", "--dry-run", *(f"--set={change}" for change in COMPRESSIVE))
    assert parts["parameters_by_part"]["compression"] > 0


def test_what_a_compressed_memory_cannot_do_is_rejected_in_one_line(others):
    for command, telling, code in (
        ("eval compressive --same-length", "leave out --same-length", 2),
        ("eval compressive --compile on", "leave out --compile", 2),
        ("generate compressive --compile on", "leave out --compile", 2),
        ("attention compressive", "no attention to single tokens", 2),
        ("export compressive exported", 'only arch = "transformer"', 1),
    ):
        assert telling in refusal(*command.split(), code=code)


def test_the_segment_length_of_an_evaluation_changes_its_speed_only(others):
    outputs = [json_of("eval", "rmt", "--seg-len", length, *SHORT) for length in (1, 5, 7, 20)]
    losses = [output["rows"][0]["loss_nats"] for output in outputs]
    assert losses[1:] == pytest.approx(losses[:1] * 3, rel=1e-5)
    assert "The recurrent state is carried along the text." in done("eval", "rmt", *SHORT).stdout


def test_what_memory_tokens_cannot_do_is_rejected_in_one_line(others):
    for option in ("--mem-len", "--max-distance"):
        assert f"leave out {option}" in refusal("eval", "rmt", option, 5)


@pytest.mark.slow
@pytest.mark.parametrize(("arch", "methods"), [("compressive", ["--cache 10"]), ("rmt", ["--cache 10", "--dynamic"])])
def test_other_memories_generate_compress_and_adapt(others, arch, methods):
    assert len(json_of("generate", arch, "--prompt", "the fox", "--tokens", 12)["samples"][0]["tokens"]) == 12
    assert compressed_and_restored(arch, b"the fox saw the fox and the fox saw the hen")
    for method in methods:
        assert json_of("eval", arch, *method.split(), *SHORT)["rows"][0]["tokens"] == 60
