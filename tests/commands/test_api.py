"""The Python interface: what it returns equals what the commands print."""

import dataclasses
import importlib.util
import json
import math
import subprocess
import sys
import threading
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import txlcli
from tests.commands.novel import done, json_of
from txlcli.errors import RecipeError, StoreError, TxlError, UnknownNameError, UsageError, VocabularyError

TEXT = "the zebra and the horse\nwent on\n"


@pytest.fixture
def run(here):
    return txlcli.load("byte")


def test_torch_is_imported_when_a_run_is_loaded_and_its_compiler_not_even_then(here):
    code = (
        "import sys, txlcli; assert 'torch' not in sys.modules; txlcli.load; assert 'torch' in sys.modules; "
        "txlcli.load('byte').score('the fox'); assert 'torch._dynamo' not in sys.modules"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_training_on_a_cpu_says_if_pytorch_was_imported_too_early(tmp_path, monkeypatch):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    code = "import torch, txlcli; txlcli.train('none', device='cpu', on_progress=print)"
    ended = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "UnknownNameError" in ended.stderr
    assert "import txlcli first" in ended.stdout


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'laod'"):
        _ = txlcli.laod


def test_score_equals_eval_of_the_text(run, here):
    (here / "text.txt").write_text(TEXT)
    score = run.score(TEXT)
    expected = json_of("eval", "byte", "--text", "text.txt", "--batch-size", 1)["rows"][0]
    assert score.total_nats / len(score.loss_nats) == pytest.approx(expected["loss_nats"], rel=1e-6)
    assert (score.bpc, score.ppl) == (pytest.approx(expected["bpc"]), pytest.approx(expected["ppl"]))
    assert score.bits_per_byte == pytest.approx(expected["bits_per_byte"])
    assert run.vocab.decode(score.tokens) == TEXT[1:]  # the first byte has no context


@pytest.mark.parametrize("name", ["byte", "word"])
def test_log_probs_are_those_that_score_sums(name, here):
    run = txlcli.load(name)
    ids, mem_len = run.vocab.encode(TEXT), 5
    log_probs = run.log_probs(TEXT, mem_len=mem_len)
    shift = 0 if run.vocab.boundary is not None else 1  # a word model reads a boundary first
    losses = [-log_probs[t, token] for t, token in enumerate(ids[shift:])]
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, rtol=1e-4)
    np.testing.assert_allclose(losses, run.score(TEXT, mem_len=mem_len).loss_nats, atol=1e-4)


def test_generate_equals_the_command(run):
    expected = json_of("generate", "byte", "--prompt", "the ze", "--tokens", 30, "--seed", 5)["samples"][0]["text"]
    assert run.generate("the ze", tokens=30, seed=5) == expected
    assert "".join(run.stream("the ze", tokens=30, seed=5)) == expected
    greedy = json_of("generate", "byte", "--prompt", "the ze", "--tokens", 9, "--greedy")["samples"][0]["text"]
    assert run.generate("the ze", tokens=9, greedy=True) == greedy


def test_evaluate_equals_eval_and_records_nothing(run):
    before = (run.folder / "evals.jsonl").exists()
    rows = run.evaluate(mem_len=np.array([0, 7]), positions=np.int64(50))
    assert (run.folder / "evals.jsonl").exists() == before
    expected = json_of("eval", "byte", "--mem-len", "0,7", "--positions", 50)["rows"]
    for row, of_command in zip(rows, expected, strict=True):
        assert [row.mem_len, row.loss_nats, row.bpc, row.ppl] == [
            of_command[key] for key in ("mem_len", "loss_nats", "bpc", "ppl")
        ]
        assert row.slowdown is None
    (timed,) = run.evaluate(mem_len=7, positions=50, timed=True)
    assert timed.slowdown > 0
    (window,) = run.evaluate(attn_len=6, positions=50)
    assert (window.mem_len, window.attn_len, window.attn_len_max) == (0, 6, 6)


def test_a_store_opens_by_name_and_by_path_and_tells_what_it_could_not_read(here):
    store = txlcli.open_store("novel")
    assert len(store.ids("train")) == txlcli.open_store(here / "data/novel.h5").info("train").tokens
    (here / "words.txt").write_text("<unk>\n<eos>\nowl's\n")
    prepared = txlcli.prepare("novel", txlcli.PrepareOptions(vocab=here / "words.txt", name="other"))
    assert any("not in the vocabulary" in note for note in prepared.to_dict()["notes"])
    assert [row["split"] for row in prepared.table()] == ["train", "valid", "test"]
    assert "owl's" not in repr(prepared)


def test_a_model_of_a_recipe_has_its_parameters_and_changes():
    model = txlcli.make_model("stdlib", vocab_size=11, changes={"model.n_layers": 2, "model.tie_embeddings": False})
    assert (model.settings.n_layers, model.settings.tie_embeddings, model.vocab_size) == (2, False, 11)
    changes = {"model.cutoffs": (5, 7), "model.tie_projections": [True, False, True]}
    model = txlcli.make_model("stdlib", vocab_size=11, changes=changes)
    assert (model.settings.cutoffs, model.settings.tie_projections) == ((5, 7), (True, False, True))


def test_recl_takes_one_run_as_well_as_several(here):
    options = txlcli.ReclOptions(start=3, step=4, longest=15, positions=40)
    assert txlcli.recl("byte", options).to_dict() == txlcli.recl(["byte"], options).to_dict()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda run: txlcli.load("byt"), UnknownNameError, 'unknown run "byt"; did you mean "byte"'),
        (lambda run: txlcli.open_store("nope"), StoreError, "no token store at"),
        (lambda run: txlcli.make_model("stdlib"), RecipeError, "give vocab_size"),
        (lambda run: txlcli.make_model("ptb", changes={"train.lr": 0}), RecipeError, "lr must be greater than 0"),
        (lambda run: run.score(""), VocabularyError, "text: no token to predict"),
        (lambda run: run.score("runs/byte/run.json"), UsageError, 'give pathlib.Path."runs/byte'),
        (lambda run: run.score(TEXT, column="body"), UsageError, "apply to files"),
        (lambda run: run.score(Path("novel"), encoding="utf-17"), UsageError, "is not known"),
        (lambda run: run.log_probs(""), UsageError, "the text is empty"),
        (lambda run: run.generate(""), UsageError, "the prompt is empty"),
        (lambda run: run.generate("ze", samples=3), UnknownNameError, 'unknown option "samples"'),
        (lambda run: run.generate("ze", out=Path("x.json")), UnknownNameError, 'unknown option "out"'),
        (lambda run: run.evaluate(split="dev"), UsageError, 'did you mean "valid"'),
        (lambda run: run.score(TEXT, mem_len=-1), UsageError, "mem_len must be at least 0"),
        (lambda run: txlcli.recl([]), UsageError, "name at least one run"),
        (lambda run: txlcli.recl(["byte", run]), UsageError, "runs` must be a text or path, not <LoadedRun"),
        (lambda run: txlcli.difference(run, "byte"), UsageError, "first` must be a text or path, not <LoadedRun"),
    ],
)
def test_wrong_calls_are_rejected(run, call, error, message):
    with pytest.raises(error, match=message):
        call(run)


def test_a_run_is_measured_as_by_the_commands(run, here):
    head = txlcli.AttentionOptions(heads=((1, 1),), positions=9, at=6, out=here / "heads")
    measured = run.attention(head)
    expected = json_of("attention", "byte", "--heads", "1.1", "--positions", 9, "--at", 6)
    assert measured.to_dict()["figure6"] == expected["figure6"]
    assert sorted(path.name for path in (here / "heads").iterdir()) == sorted(
        Path(path).name for path in expected["files"]
    )
    probed = run.probe(txlcli.ProbeOptions(distances=(4,), texts=3, positions=90, plot=here / "probe.png"))
    options = ("--distances", 4, "--texts", 3, "--positions", 90)
    assert probed.to_dict() == json_of("probe", "byte", *options)
    assert (here / "probe.png").is_file()
    lengths = txlcli.ReclOptions(start=4, step=4, longest=8, positions=20, plot=here / "recl.png")
    options = ("--start", 4, "--step", 4, "--longest", 8, "--positions", 20)
    assert txlcli.recl(["byte"], lengths).to_dict() == json_of("recl", "byte", *options)
    assert (here / "recl.png").is_file()
    options = ("--mem-len", "0,5", "--split", "train")
    both = txlcli.difference("byte", "byte", txlcli.DifferenceOptions(mem_len=(0, 5), split="train"))
    assert both.to_dict() == json_of("runs", "difference", "byte", "byte", *options)
    (row,) = both.table()
    assert (row["first_evaluation"], row["second_evaluation"], row["unit"]) == ("mem_len_0", "mem_len_5", "token")
    assert row["second_loss_nats"] == both.second.loss_nats
    timed = run.speed(txlcli.SpeedOptions(attn_len=(8,), repeat=1, plot=here / "speed.svg"))
    assert (timed.slowdown[0].attn_len, (here / "speed.svg").is_file()) == (8, True)


def test_a_run_is_written_as_by_the_commands_without_a_line_of_output(run, here, capfd):
    exported = run.export(here / "hf")
    assert {path.name for path in (here / "hf").iterdir()} >= set(exported.files)
    written = run.report(txlcli.ReportOptions(samples=1))
    assert [Path(path).is_file() for path in written.report] == [True, True]
    assert capfd.readouterr() == ("", "")
    with pytest.raises(UsageError, match="`out`"):
        run.attention(txlcli.AttentionOptions(format="pdf"))
    with pytest.raises(UsageError, match="token store"):
        run.export(here / "ids", txlcli.ExportOptions(format="nanogpt"))


def test_a_loaded_run_is_measured_with_the_settings_that_it_was_resumed_with(run, here):
    done("train", "--resume", "byte", "--set", "eval.mem_len=4", "--set", "train.max_steps=8", "-q")
    run.export(here / "written")
    assert json.loads((here / "written/config.json").read_text())["mem_len"] == 4


def test_results_are_dictionaries_and_tables(run):
    rows = run.evaluate(mem_len=[0, 7], positions=50)
    score = run.score(TEXT)
    assert [row["mem_len"] for row in rows.to_dict()["rows"]] == [0, 7]
    assert json.loads(json.dumps(score.to_dict()))["loss_nats"] == score.loss_nats.tolist()
    html = rows._repr_html_()
    assert ElementTree.fromstring(html).findall("tr")[2][0].text == "7"
    shown = [line.split() for line in str(rows).splitlines()]
    assert [line[shown[0].index("mem_len")] for line in shown[1:]] == ["0", "7"]
    long_score = txlcli.load("byte").score(TEXT * 3)
    assert "more rows" in long_score._repr_html_()
    assert str(long_score).splitlines()[-1].endswith("more rows")
    if importlib.util.find_spec("pandas"):
        assert rows.to_pandas()["bpc"].tolist() == [row.bpc for row in rows]
    else:
        with pytest.raises(TxlError, match="pandas"):
            score.to_pandas()


SURROGATE = "ze \ud83d"


@pytest.mark.parametrize("name", ["byte", "char", "word", "sentencepiece"])
def test_an_unpaired_surrogate_and_bytes_that_are_not_text_are_rejected(here, name):
    run = txlcli.load(name)
    for call in (run.score, run.log_probs, run.generate):
        with pytest.raises(VocabularyError, match="unpaired surrogate"):
            call(SURROGATE)
    if name != "byte":
        for call in (run.score, run.log_probs):
            with pytest.raises(VocabularyError, match=r"not UTF-8 at byte 2; convert it first$"):
                call(b"ze\xff")
    np.testing.assert_array_equal(run.log_probs(TEXT.encode()), run.log_probs(TEXT))


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"\xef\xbb\xbfabc", b"\x00\x01\xff"])
def test_a_byte_level_model_scores_any_bytes_as_they_are(here, data):
    run = txlcli.load("byte")
    assert run.score(data).tokens.tolist() == list(data[1:])
    if data.startswith(b"\xef"):
        (here / "text.txt").write_bytes(data)
        assert run.score(here / "text.txt").tokens.tolist() == list(data[4:])  # a file has an encoding


LONG = "~" * 300
WRONG = {
    "int": (True, -1, 0, 2.5, 10**30, "7", np.float32(3), [3]),
    "lengths": (True, -1, 10**30, "all", [], [7, "a"], [0.5], torch.tensor(3)),
    "text": (None, 7, ["ze"]),
    "path": (7, b"x", SURROGATE, "a\0b", LONG),
    "bool": ("yes", 1, np.True_),
    "share": (-0.5, 0, 2, math.nan, "a"),
    "word": ("x", "", 3, SURROGATE),
    "options": (7, {}, "name"),
    "ids": (7, None, "ze", [1.5], [None], np.array([[1, 2]]), [], [-1]),
    "argument": ("stop", "at", "out", "samples", "token"),
    "callable": (7, "print"),
}
"""Values that an argument of a kind does not take, zero aside where it means "off"."""
ARGUMENTS = [
    ("text", lambda run, value: run.score(value)),
    ("text", lambda run, value: run.generate(value)),
    ("int", lambda run, value: run.reader(batch_size=value)),
    ("int", lambda run, value: run.score(TEXT, mem_len=value or -1)),
    ("int", lambda run, value: run.generate("ze", tokens=value)),
    ("ids", lambda run, value: run.generate_ids(value)),
    ("argument", lambda run, value: run.generate_ids([1], **{value: 3})),
    ("share", lambda run, value: run.generate("ze", top_p=value)),
    ("bool", lambda run, value: run.generate("ze", greedy=value)),
    ("lengths", lambda run, value: run.evaluate(mem_len=value)),
    ("word", lambda run, value: run.evaluate(split=value)),
    ("int", lambda run, value: run.evaluate(positions=value)),
    ("bool", lambda run, value: run.evaluate(timed=value)),
    ("path", lambda run, value: txlcli.load(value)),
    ("word", lambda run, value: txlcli.load("byte", device=value)),
    ("callable", lambda run, value: txlcli.load("byte", on_progress=value)),
    ("path", lambda run, value: txlcli.open_store(value)),
    ("path", lambda run, value: txlcli.make_model(value, vocab_size=7)),
    ("int", lambda run, value: txlcli.make_model("stdlib", vocab_size=value)),
    ("share", lambda run, value: txlcli.make_model("stdlib", vocab_size=7, changes={"model.dropout": value or -1})),
    ("path", lambda run, value: txlcli.train(value)),
    ("options", lambda run, value: txlcli.train("stdlib", value)),
    ("callable", lambda run, value: txlcli.train("stdlib", on_report=value)),
    ("path", lambda run, value: txlcli.prepare(value)),
    ("word", lambda run, value: txlcli.PrepareOptions(tokenizer=value)),
    ("int", lambda run, value: txlcli.PrepareOptions(vocab_size=value)),
    ("bool", lambda run, value: txlcli.TrainOptions(force=value)),
]


@pytest.fixture(scope="module")
def own_run(trained_novel):
    return txlcli.load("byte", runs_dir=trained_novel / "runs", data_dir=trained_novel / "data")


@pytest.mark.parametrize("number", range(len(ARGUMENTS)))
def test_a_wrong_argument_is_one_line_of_an_error_of_txl(own_run, tmp_path, monkeypatch, number):
    monkeypatch.chdir(tmp_path)
    kind, call = ARGUMENTS[number]
    for value in WRONG[kind]:
        with pytest.raises(TxlError) as caught:
            call(own_run, value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 400
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("call", "meant"),
    [
        (lambda run: run.evaluate(mem_lens=7), 'argument of evaluate() "mem_lens"; did you mean "mem_len"?'),
        (lambda run: run.generate("ze", temprature=1.0), 'option "temprature"; did you mean "temperature"?'),
        (lambda run: txlcli.load(folder="."), 'argument of load() "folder" (known: '),
        (lambda run: txlcli.TrainOptions(set=("a",)), 'argument of TrainOptions() "set"; did you mean "overrides"?'),
    ],
)
def test_a_misspelt_argument_is_answered_with_the_name_that_was_meant(own_run, call, meant):
    with pytest.raises(UnknownNameError) as caught:
        call(own_run)
    assert str(caught.value).startswith(f"unknown {meant}")


def test_an_option_as_an_argument_is_answered_with_the_options():
    for given, option in ({"set": ["train.lr=1"]}, "overrides"), ({"max_steps": 3}, "max_steps"):
        with pytest.raises(UsageError, match=rf"give options=TrainOptions\({option}="):
            txlcli.train("stdlib", **given)


def test_prepare_and_train_make_what_the_commands_make(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "book.txt").write_text("one two three four five\n" * 500)
    told = []
    store = txlcli.prepare("book.txt", on_progress=lambda *progress: told.append(progress))
    assert store.info("train").tokens == 10_800
    assert ("reading", 12_000, 12_000) in told
    small = ("model.n_layers=1", "model.d_model=8", "model.n_heads=1", "model.d_head=8", "model.d_inner=8")
    options = txlcli.TrainOptions(name="own", overrides=(*small, "train.max_steps=3", "train.batch_size=2"))
    lines = []
    trained_in_thread = threading.Thread(target=txlcli.train, args=("book", dataclasses.replace(options, name="other")))
    trained_in_thread.start()
    trained_in_thread.join()
    result = txlcli.train("book", options, on_report=lines.append, on_progress=lambda *progress: told.append(progress))
    assert (result.step, result.run.settings.corpus.store) == (3, "book")
    assert [line["step"] for line in lines] == [3, 3]
    assert any(total == 3 and done == 3 for _, done, total in told)
    assert result.to_dict()["run"] == "runs/own"
    assert [row["step"] for row in result.table()] == [3, 3]
    assert txlcli.load("own").score("two three").bpc == txlcli.load("other").score("two three").bpc > 0
    with pytest.raises(UsageError, match=r"^nothing to train; name a recipe"):
        txlcli.train()
    assert {"prepare", "train", "load", "open_store", "make_model"} <= set(dir(txlcli))
