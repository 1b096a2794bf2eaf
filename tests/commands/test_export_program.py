"""Runs exported as programs: plain PyTorch, in a process that cannot import txl, gives the same log-probabilities."""

import json
import runpy
import shutil
import subprocess
import sys
import warnings

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tests.commands.novel import RMT, done, json_of, refusal, text_of, train
from tests.extensions import registered_slopes
from txlcli.core.reading.registry import make_reader
from txlcli.core.reading.windows import WindowReader
from txlcli.runs import loading, run_directory

WITHOUT_TXL = """
import runpy, sys
sys.modules["txlcli"] = None  # an import would raise
import torch
loaded = runpy.run_path(sys.argv[1] + "/load.py")
tokens, state, results = torch.load("tokens.pt"), None, []
for part in tokens.split([9, 1, 4, 13], dim=1):
    log_probs, state = loaded["read"](part, state)
    results.append(log_probs)
torch.save(torch.cat(results, dim=1), "log_probs.pt")
print(loaded["encode"]("the fox\\n"), repr(loaded["decode"](loaded["encode"]("the fox"))))
"""
KINDS = {
    "gates": ["model.norm=pre", "model.gating=gru", "corpus.store=word", "model.cutoffs=[5,11]", "model.div_val=2"],
    "modern": ["model.norm=pre", "model.block=modern", "model.position=rotary", "model.d_head=6"],
    "zeros": ["model.memory_start=zeros", "model.position=alibi", "corpus.store=word", "eval.temperature=1.4"],
    "window": ["model.window=4", "eval.max_distance=4"],
}


@pytest.fixture(scope="module")
def exported_bytes(trained_novel, tmp_path_factory):
    """Export the run of bytes once for all tests of this module: an export takes two seconds."""
    directory = tmp_path_factory.mktemp("exported") / "out"
    done("export", "byte", directory, "--format", "pt2", "--runs-dir", trained_novel / "runs")
    return directory


@pytest.fixture
def program(here, exported_bytes):
    """Copy the program of the run of bytes to the folder "out" of the current one."""
    shutil.copytree(exported_bytes, here / "out")


def run_python(*words):
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


@pytest.mark.parametrize(
    "kind", [name if name == "zeros" else pytest.param(name, marks=pytest.mark.slow) for name in KINDS]
)
def test_a_program_reads_segments_as_txl_does(here, kind):
    train(*KINDS[kind], name=kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        done("export", kind, "out", "--format", "pt2")
    opened = loading.open_run(run_directory.find(kind, here / "runs"), device="cpu", precision="fp32")
    tokens = torch.randint(opened.model.vocab_size, (3, 27), generator=torch.Generator().manual_seed(5))
    settings = opened.run.settings.evaluation_settings(batch_size=3)
    reader = make_reader(opened.model.on(temperature=float(settings.temperature)), settings)
    expected = torch.cat([reader.log_probs(reader.read(part)) for part in tokens.split(5, dim=1)], dim=1)
    torch.save(tokens, "tokens.pt")
    printed = run_python("-c", WITHOUT_TXL, "out")
    torch.testing.assert_close(torch.load("log_probs.pt"), expected, rtol=0, atol=1e-5)
    ids = opened.vocab.encode("the fox\n").tolist()
    first = [] if opened.vocab.boundary is None else [opened.vocab.boundary]
    assert printed.splitlines()[0].startswith(str([*first, *ids]))


SHORT_CONTEXTS = {
    "without memory": ["train.mem_len=0", "eval.mem_len=0"],
    "positions in the segment": ["model.position=sinusoid", "eval.same_length=off"],
}


@pytest.mark.parametrize(
    "kind", [name if "memory" in name else pytest.param(name, marks=pytest.mark.slow) for name in SHORT_CONTEXTS]
)
def test_the_loader_samples_what_txl_predicts(here, kind):
    train(*SHORT_CONTEXTS[kind], "train.max_steps=40", name="short")
    done("export", "short", "out", "--format", "pt2")
    opened = loading.open_run(run_directory.find("short", here / "runs"), device="cpu", precision="fp32")
    settings = opened.run.settings.evaluation_settings(batch_size=1)
    reader = (
        make_reader(opened.model, settings, by_tokens=True)
        if settings.mem_len
        else WindowReader(opened.model, settings)
    )
    ids = opened.vocab.encode("the fox").tolist()
    unread = ids
    torch.manual_seed(3)
    for _ in range(12):
        log_probs = reader.log_probs(reader.read_last(torch.tensor([unread])))
        unread = [int(torch.multinomial(log_probs[0, -1].exp(), 1))]
        ids += unread
    continued = runpy.run_path("out/load.py")["continued"]
    torch.manual_seed(3)
    assert continued("the fox", 12) == opened.vocab.decode(ids)


def test_the_loader_reads_all_of_a_text_or_says_what_the_vocabulary_lacks(here, program):
    encode = runpy.run_path("out/load.py")["encode"]
    assert encode("\udcff\r\n\ufb01") == [255, 13, 10, *"\ufb01".encode()]
    vocabulary = here / "out/vocab.json"
    facts = json.loads(vocabulary.read_text())
    few = {"bytes": [97, 98], "dropped": [10]}
    for changed in (few, {"kind": "char", "symbols": ["a", "b"], "lower_case": False}):
        vocabulary.write_text(json.dumps(facts | changed))
        encode = runpy.run_path("out/load.py")["encode"]
        assert encode("abba") == [0, 1, 1, 0]
        with pytest.raises(ValueError, match="the vocabulary lacks 'X'"):
            encode("abX")


def test_the_loader_says_what_is_wrong_with_its_arguments(here, program, monkeypatch):
    (here / "short.txt").write_text("a")
    for words, message in (
        ([], "python load.py score FILE"),
        (["score", "absent.txt"], "absent.txt: No such file"),
        (["score", "short.txt"], "no second token"),
        (["continue", ""], "no token to continue"),
    ):
        monkeypatch.setattr(sys, "argv", ["load.py", *words])
        with pytest.raises(SystemExit, match=message):
            runpy.run_path("out/load.py", run_name="__main__")


def test_the_loader_scores_a_text_of_words_as_eval_does(here):
    done("export", "word", "out", "--format", "pt2")
    text = "the fox jumps <eos> \nover<eos>\r\n<eos>\nthe lazy dog"  # no line end
    (here / "text.txt").write_text(text)
    scored = json_of("eval", "word", "--text", "text.txt", "--batch-size", 1)["rows"][0]
    score = runpy.run_path("out/load.py")["score"]
    assert score("\ufeff" + text) == pytest.approx(scored["loss_nats"], abs=1e-5)


class LargestTensor(TorchDispatchMode):
    """Keeps the number of elements of the largest tensor that is computed."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def test_the_loader_holds_no_distribution_of_each_token_of_a_text(program):
    score = runpy.run_path("out/load.py")["score"]
    text = "the fox " * 40
    with LargestTensor() as largest:
        score(text)
    assert largest.elements < len(text) * 256 / 8


@pytest.mark.slow
def test_the_loader_scores_and_continues_a_text(here, program):
    loss = float(run_python("out/load.py", "score", "novel/test.txt"))
    opened = loading.open_run(run_directory.find("byte", here / "runs"), device="cpu", precision="fp32")
    ids = torch.from_numpy(opened.vocab.encode(text_of("test")))[None]
    reader = make_reader(opened.model, opened.run.settings.evaluation_settings(batch_size=1))
    log_probs = torch.cat([reader.log_probs(reader.read(part)) for part in ids[:, :-1].split(5, dim=1)], dim=1)
    assert loss == pytest.approx(-log_probs[0].gather(1, ids[0, 1:, None]).mean().item(), rel=1e-6)
    assert run_python("out/load.py", "continue", "the fox").startswith("the fox")


@pytest.mark.slow
def test_a_program_of_pieces_is_told_to_take_ids(here):
    shown = done("export", "sentencepiece", "out", "--format", "pt2").stdout
    assert "score FILE" not in shown
    assert "cannot encode text of this vocabulary" in shown


def test_other_architectures_are_rejected_and_other_configurations_are_told(here):
    train("model.norm=pre", name="pre")
    assert refusal("export", "pre", "out", "--format", "hf", code=1).endswith("; export it with --format transformers")
    with registered_slopes():
        train("model.position=slopes", name="slopes")
        assert refusal("export", "slopes", "out", "--format", "hf", code=1).endswith("; export it with --format pt2")
        assert "only --format pt2 exports it" in refusal("export", "slopes", "out", code=1)
    train(*RMT, name="rmt")
    assert 'not "rmt"' in refusal("export", "rmt", "out", "--format", "pt2", code=1)
    assert not (here / "out").exists()
