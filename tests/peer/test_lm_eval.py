"""lm-evaluation-harness with runs of txl: numbers equal `txl eval --text`, windows equal its own.

Needs the extra "lm-eval"; skipped where it is not installed. Tasks are local files; nothing is downloaded.
"""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

os.environ.update({"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_EVALUATE_OFFLINE": "1"})
pytest.importorskip("lm_eval", reason='the harness is not installed: pip install -e ".[lm-eval]"')

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.tasks import TaskManager
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

import txlcli
from tests.commands.novel import done, json_of, prepare_and_train, text_of, train
from txlcli.errors import RunError, UnknownNameError, UsageError, VocabularyError
from txlcli.lm_eval import register
from txlcli.lm_eval.model import HarnessModel

TEXTS = [text_of("test"), text_of("valid"), "the fox jumps over the lazy dogs\n"]
TASK = """
task: {name}
dataset_path: json
dataset_kwargs:
  data_files: {{test: {directory}/{name}.jsonl}}
test_split: test
metadata:
  version: 1.0
"""
TASKS = {
    "novel": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]
""",
    "choices": """
output_type: multiple_choice
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{gold}}"
""",
    "generation": """
output_type: generate_until
doc_to_text: "{{context}}"
doc_to_target: "cat"
generation_kwargs: {until: ["\\n"], max_gen_toks: 9}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """Make a directory with a trained run per tokenizer and local tasks the current one."""
    directory = tmp_path_factory.mktemp("harness") / "here"
    prepare_and_train(directory)
    tasks = directory / "tasks"
    tasks.mkdir()
    for name, task in TASKS.items():
        (tasks / f"{name}.yaml").write_text(TASK.format(name=name, directory=directory) + task)
    (directory / "novel.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    line = {"context": "the fox", "choices": [" cat owl", " jumps"], "gold": 1}
    for name in ("choices", "generation"):
        (directory / f"{name}.jsonl").write_text(json.dumps(line) + "\n")
    before = Path.cwd()
    os.chdir(directory)
    yield directory
    os.chdir(before)


def evaluate(task, arguments, **options):
    """Return the results of a task as the harness computes them, by metric."""
    register()
    manager = TaskManager(include_path="tasks", include_defaults=False)
    results = lm_eval.simple_evaluate(
        model="txl",
        model_args=arguments,
        tasks=[task],
        task_manager=manager,
        bootstrap_iters=0,
        device="cpu",
        **options,
    )
    return {name.partition(",")[0]: value for name, value in results["results"][task].items()}, results


def rolling(run, texts, **arguments):
    requests = [Instance("loglikelihood_rolling", {}, (text,), number) for number, text in enumerate(texts)]
    return HarnessModel(run, device="cpu", **arguments).loglikelihood_rolling(requests)


def continued(run, pairs, **arguments):
    requests = [Instance("loglikelihood", {}, pair, number) for number, pair in enumerate(pairs)]
    return HarnessModel(run, device="cpu", **arguments).loglikelihood(requests)


def generated(run, contexts, options, **arguments):
    requests = [Instance("generate_until", {}, (context, options), number) for number, context in enumerate(contexts)]
    return HarnessModel(run, device="cpu", **arguments).generate_until(requests)


def nats_of_eval(run, text, *options):
    """Return what `txl eval --text` sums, plus log V for a first symbol that has no context, which it leaves out."""
    Path("text.txt").write_text(text)
    (row,) = json_of("eval", run, "--text", "text.txt", "--batch-size", 1, *options)["rows"]
    first = math.log(txlcli.load(run).vocab.size) if run in ("byte", "char") else 0.0
    return row["loss_nats"] * row["tokens"] + first


@pytest.mark.parametrize(("batch_size", "mem_len"), [(1, 5), (2, 13)])
@pytest.mark.parametrize("run", ["byte", "char", "word", "sentencepiece"])
def test_a_rolling_task_has_the_bits_per_byte_of_eval(here, run, batch_size, mem_len):
    measured, _ = evaluate("novel", f"run={run},mem_len={mem_len}", batch_size=batch_size)
    nats = sum(nats_of_eval(run, text, "--mem-len", mem_len) for text in TEXTS)
    size = sum(len(text.encode()) for text in TEXTS)
    assert measured["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, abs=1e-5)
    assert measured["byte_perplexity"] == pytest.approx(math.exp(nats / size), rel=1e-5)


def test_a_byte_model_has_the_bits_per_byte_of_eval_on_a_long_text(here):
    text = TEXTS[0] * 150
    Path("long.txt").write_text(text)
    (row,) = json_of("eval", "byte", "--text", "long.txt", "--batch-size", 1)["rows"]
    (log_likelihood,) = rolling("byte", [text])
    assert -log_likelihood / math.log(2) / len(text.encode()) == pytest.approx(row["bits_per_byte"], abs=1e-4)


def test_memory_is_carried_along_a_document_and_not_into_the_next(here):
    together, alone = rolling("byte", TEXTS), [rolling("byte", [text])[0] for text in TEXTS]
    assert together == pytest.approx(alone, rel=1e-6)
    assert rolling("byte", TEXTS, mem_len=0) != pytest.approx(together, rel=1e-6)


@pytest.mark.parametrize("run", ["byte", "word"])
def test_windows_are_those_of_the_harness(here, run):
    opened = txlcli.load(run)
    ids = opened.vocab.encode(TEXTS[0]).tolist()
    (log_likelihood,) = rolling(run, TEXTS[:1], attn_len=7)
    # The harness predicts every token, the first one after a prefix, which bytes do not have.
    prefix, to_predict = (opened.vocab.boundary, ids) if run == "word" else (ids[0], ids[1:])
    windows = get_rolling_token_windows(to_predict, prefix_token=prefix, max_seq_len=7, context_len=1)
    nats = 0.0 if run == "word" else math.log(opened.vocab.size)
    for context, continuation in map(make_disjoint_window, windows):
        tokens = np.array(context + continuation[:-1])
        assert len(tokens) <= 7
        nats += window_nats(opened, tokens, continuation)
    assert log_likelihood == pytest.approx(-nats, rel=1e-5)


def window_nats(opened, tokens, continuation):
    """Return the nats of a continuation in one window, by the model's forward pass."""
    import torch

    model = opened.model
    limit = opened.settings.evaluation_settings().max_distance
    with torch.no_grad():
        hidden, _ = model(torch.from_numpy(tokens)[None], model.first_memory(1, 0), mem_len=0, max_distance=limit)
        log_probs = model.log_probs(hidden)[0, -len(continuation) :]
    return -float(sum(log_probs[row, token] for row, token in enumerate(continuation)))


def test_disjoint_windows_are_the_protocol_of_eval(here):
    (log_likelihood,) = rolling("word", TEXTS[:1], attn_len=7)
    nats = nats_of_eval("word", TEXTS[0], "--attn-len", 7, "--stride", 7)
    assert log_likelihood == pytest.approx(-nats, rel=1e-6)


def test_a_model_without_memory_reads_windows_of_its_trained_length(here):
    train("train.mem_len=0", "eval.mem_len=0", name="vanilla")
    assert rolling("vanilla", TEXTS) == rolling("vanilla", TEXTS, attn_len=5)


@pytest.mark.parametrize("run", ["byte", "word", "sentencepiece"])
def test_the_log_likelihoods_of_a_context_and_its_continuation_sum_to_that_of_the_text(here, run):
    context, continuation = "the fox", " jumps over the lazy dogs"
    ((whole, _),) = continued(run, [("", context + continuation)])
    ((first, _),) = continued(run, [("", context)])
    ((rest, _),) = continued(run, [(context, continuation)])
    assert whole == pytest.approx(rolling(run, [context + continuation])[0], rel=1e-6)
    assert rest == pytest.approx(whole - first, rel=1e-5)


def test_blanks_at_the_end_of_a_context_belong_to_the_continuation(here):
    assert continued("byte", [("the fox", "")]) == [(0.0, True)]
    ((with_blank, _),) = continued("byte", [("the fox ", "jumps")])
    ((expected, _),) = continued("byte", [("the fox", " jumps")])
    assert with_blank == expected


@pytest.mark.parametrize("run", ["word", "sentencepiece"])
def test_a_token_that_the_continuation_completes_belongs_to_it(here, run):
    ((completed, _),) = continued(run, [("the fox jum", "ps over")])
    ((expected, _),) = continued(run, [("the fox", " jumps over")])
    assert completed == expected < 0


def test_a_continuation_without_a_token_of_its_own_is_rejected(here):
    with pytest.raises(VocabularyError, match="token of its own"):
        continued("word", [("the quic", "k")])  # both words are unknown
    assert continued("word", [("the fox", ""), ("the fox", " ")]) == [(0.0, True)] * 2


@pytest.mark.parametrize("arguments", [{}, {"attn_len": 23}])
def test_a_continuation_is_greedy_if_greedy_generation_gives_it(here, arguments):
    (text,) = generated("word", ["the fox"], {"max_gen_toks": 3}, **arguments)
    results = continued("word", [("the fox", text), ("the fox", text + " owl owl owl")], **arguments)
    assert [is_greedy for _, is_greedy in results] == [True, False]


def test_generation_equals_that_of_txl(here):
    (text,) = generated("byte", ["the fox"], {"max_gen_toks": 20, "do_sample": False})
    assert text == txlcli.load("byte").generate("the fox", tokens=20, greedy=True)


def test_generation_ends_before_the_first_stop_sequence(here):
    (whole,) = generated("char", ["the fox"], {"max_gen_toks": 30})
    stop = whole[11:13]
    assert stop
    (text,) = generated("char", ["the fox"], {"max_gen_toks": 30, "until": [stop, "never"]})
    assert text == whole[: whole.index(stop)]
    assert generated("char", ["the fox"], {"max_gen_toks": 30, "until": stop}) == [text]


def test_sampling_options_are_used(here):
    options = {"do_sample": True, "temperature": 5.0, "top_k": 0, "top_p": 1.0, "max_tokens": 20}
    assert generated("byte", ["the fox"], options) != generated("byte", ["the fox"], {"max_tokens": 20})
    greedy = {"do_sample": True, "temperature": 1.0, "top_k": 1, "max_tokens": 20}
    assert generated("byte", ["the fox"], greedy) == generated("byte", ["the fox"], {"max_tokens": 20})


def test_tasks_of_choices_and_of_generation_run(here):
    measured, results = evaluate("choices", "run=word,mem_len=11")
    ((cat, _), (jumps, _)) = continued("word", [("the fox", " cat owl"), ("the fox", " jumps")], mem_len=11)
    assert measured["acc"] == float(jumps > cat)
    assert results["config"]["model_run"] == "runs/word"
    assert (results["config"]["model_mem_len"], results["config"]["model_seg_len"]) == (11, 5)
    measured, _ = evaluate("generation", "run=word")
    assert "exact_match" in measured  # the model generates; what it says is not trained


def test_the_command_line_of_the_harness_knows_the_model(here):
    words = ["--model", "txl", "--model_args", "run=sentencepiece,mem_len=13", "--tasks", "novel"]
    command = [sys.executable, "-m", "txlcli.lm_eval", *words, "--include_path", "tasks", "--output_path", "results"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    (file,) = Path("results").rglob("results*.json")
    measured = json.loads(file.read_text())["results"]["novel"]["bits_per_byte,none"]
    nats = sum(nats_of_eval("sentencepiece", text, "--mem-len", 13) for text in TEXTS)
    assert measured == pytest.approx(nats / math.log(2) / sum(len(text.encode()) for text in TEXTS), abs=1e-5)


def test_an_error_of_the_command_line_is_one_line(here):
    words = ["--model", "txl", "--model_args", "run=bite", "--tasks", "novel", "--include_path", "tasks"]
    command = [sys.executable, "-m", "txlcli.lm_eval", *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 2
    assert ended.stderr.splitlines()[-1].startswith('error: unknown run "bite"; did you mean "byte"?')
    assert "Traceback" not in ended.stderr


def test_the_harness_names_cuda_where_there_is_none(here):
    assert HarnessModel("byte", device="cuda").loglikelihood_rolling([]) == []


def test_unknown_words_are_reported(here, caplog):
    rolling("word", ["the fox\nthe zebra\n"])
    assert "1 of 6 tokens are not in the vocabulary and are read as <unk>" in caplog.text


WRONG = [
    ({"run": "byte", "mem_len": "long"}, UsageError, "`mem_len` must be "),
    ({"run": "byte", "seg_len": 0}, UsageError, "`seg_len` must be at least 1, not 0"),
    ({"run": "byte", "batch_size": "auto"}, UsageError, "batch_size=auto: give the number of documents"),
    ({"run": "byte", "attn_len": 5, "mem_len": 5}, UsageError, "`attn_len` evaluates windows without memory"),
    ({"run": "byte", "device": "cuda:1"}, UnknownNameError, 'unknown device "cuda:1"'),
    ({"runs_dir": "elsewhere"}, RunError, "no run under elsewhere"),
    ({"run": "bite"}, UnknownNameError, 'unknown run "bite"; did you mean "byte"?'),
]


@pytest.mark.parametrize(("arguments", "error", "message"), WRONG, ids=[case[2][:40] for case in WRONG])
def test_wrong_arguments_are_rejected(here, arguments, error, message):
    with pytest.raises(error) as raised:
        HarnessModel(**{"device": "cpu", **arguments})
    assert str(raised.value).startswith(message)


def test_wrong_requests_are_rejected(here):
    with pytest.raises(UsageError, match="attn_len=3: a continuation has 6 tokens"):
        continued("byte", [("the fox", " jumps")], attn_len=3)
    with pytest.raises(UnknownNameError, match='unknown option of generation "num_beams"'):
        generated("byte", ["the fox"], {"num_beams": 3})


def test_an_empty_context_is_a_line_end(here):
    options = {"max_gen_toks": 7}
    assert generated("byte", ["", "the fox"], options) == generated("byte", ["\n", "the fox"], options)
    assert len(generated("word", [""], options)) == 1


def test_a_run_of_ids_without_text_is_rejected(here):
    done("export", "novel", "ids", "--format", "nanogpt")
    (here / "ids/vocab.json").unlink()
    done("prepare", "ids")
    train("corpus.store=ids", name="ids")
    with pytest.raises(VocabularyError, match="whose text is not known"):
        HarnessModel("ids", device="cpu")


def test_a_memory_that_a_model_cannot_use_is_rejected(here):
    train("train.mem_len=0", "eval.mem_len=0", "model.position=learned", "model.n_positions=5", name="learned")
    with pytest.raises(UsageError, match="give `attn_len` instead of `mem_len`"):
        HarnessModel("learned", mem_len=5, device="cpu")
    with pytest.raises(UsageError, match="has 5 positions"):
        HarnessModel("learned", attn_len=6, device="cpu")
