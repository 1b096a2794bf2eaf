"""The commands and the Python of the README, and of the manual's page about Python, run as they are printed."""

import json
import random
import re
from pathlib import Path

import pytest
import torch

from tests.commands.novel import done
from tests.docs.pages import blocks, txl_lines
from txlcli.commands.quickstart import SETTINGS
from txlcli.config import recipe
from txlcli.core.architectures.registry import make_model
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint, grouped
from txlcli.data.vocabulary import Vocab
from txlcli.runs import lifecycle, run_directory
from txlcli.runs.run_directory import Run

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
PYTHON = ROOT / "docs" / "python.md"
NOTEBOOK = ROOT / "docs" / "notebook.ipynb"
BYTES = Vocab.of_bytes(range(256))

pytestmark = pytest.mark.skipif(not README.exists() or not PYTHON.exists(), reason="no documents here")


@pytest.fixture
def fresh_run(tmp_path, monkeypatch):
    """Create a run "quickstart" with fresh weights, and a small store "stdlib", in the current directory."""
    monkeypatch.chdir(tmp_path)
    settings = recipe.load("stdlib", (*SETTINGS, "model.n_layers=1"))
    model = make_model(settings.model, BYTES.size)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    run = Run(Path("runs/quickstart"), "stdlib", settings, BYTES.fingerprint, BYTES.size, parameters, "bpc")
    lifecycle.create(run, BYTES.to_json())
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}
    state = {"step": 1, "model": recipe.function_keys(settings.model)}
    checkpoint.save(run.directory / run_directory.LAST, Checkpoint(grouped("model", weights), state))
    Path("book.txt").write_text("the zebra and the horse went on\n" * 1_500)
    done("prepare", "book.txt", "--name", "stdlib")
    return model


def code(path, language):
    """Return the blocks of one language."""
    return [text for name, _, text in blocks(path.read_text(encoding="utf-8")) if name == language]


def test_the_python_of_the_readme_scores_generates_and_evaluates(fresh_run, capsys):
    (block,) = code(README, "python")
    exec(block, {})
    bits, *_, rows = capsys.readouterr().out.splitlines()
    assert float(bits) > 0
    assert len(json.loads(rows)) == 3


def test_the_python_of_the_manual_predicts_and_trains(fresh_run, capsys):
    *_, reader, attention, loop = code(PYTHON, "python")
    exec(attention, {})
    capsys.readouterr()
    names = {}
    exec(reader, names)
    text = torch.tensor([list(b"def main(")])
    hidden, _ = fresh_run(text, fresh_run.first_memory(1, 64), mem_len=64)
    expected = fresh_run.log_probs(hidden)[:, -1:]
    torch.testing.assert_close(names["log_probs"], expected, rtol=0, atol=1e-5)
    first, *others = capsys.readouterr().out.splitlines()
    assert first == f"{expected.max().exp():.1%} {chr(int(expected.argmax()))!r}"
    assert len(others) == 4
    exec(loop, names)
    assert [tuple(part.shape) for part in names["memory"]] == [(4, 32, 128)] * 2
    assert all(parameter.grad is not None for parameter in names["model"].parameters())


def test_the_python_of_the_manual_prepares_and_trains_a_run(fresh_run):
    _, prepare, *_ = code(PYTHON, "python")
    names = {}
    exec(prepare.replace("max_minutes=10", "max_steps=2"), names)
    assert checkpoint.load(Path("runs/book/last.safetensors")).state["step"] == 2
    assert names["run"].vocab.size == names["store"].vocab.size


def test_the_python_of_the_manual_measures_a_run(fresh_run, capsys):
    _, _, measured, *_ = code(PYTHON, "python")
    exec(measured, {})
    slowdown, width, copied, report, files, recl, pair = capsys.readouterr().out.splitlines()
    assert float(slowdown) > 0
    assert float(width) > 1
    assert 0 <= float(copied) <= 1
    assert "report.html" in report
    assert "config.json" in files
    assert "recl_tokens" in recl
    assert pair.endswith(("True", "False"))


def test_the_notebook_uses_a_quickstart_that_has_only_its_last_weights(fresh_run, capsys):
    cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in cells)
    names = {}
    for cell in cells:
        exec("".join(cell["source"]), names)
    assert capsys.readouterr().out.startswith("using runs/quickstart\n")
    assert names["run"].folder == Path("runs/quickstart")


def test_own_text_takes_the_three_commands_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts").mkdir()
    words, generator = ["the", "zebra", "house", "on", "went"], random.Random(1)
    for name in ("one", "two"):
        text = "".join(" ".join(generator.choices(words, k=9)) + ".\n" for _ in range(400))
        (tmp_path / "texts" / f"{name}.txt").write_text(text)
    section = README.read_text().split("## Your own text")[1].split("\n## ")[0]
    (block,) = re.findall(r"^```sh\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    lines = txl_lines(block)
    assert [words[0] for words in lines] == ["prepare", "train", "eval"]
    for words in lines:
        short = ["--max-steps", "2"] if words[0] == "train" else []
        done(*words, *short)


def test_the_commands_to_try_next_work_after_quickstart(fresh_run):
    Path("README.md").write_text(README.read_text())
    section = README.read_text().split("## Try next")[1].split("\n## ")[0]
    for words in txl_lines(section):
        short = {"attention": ["--positions", "50"], "train": ["--set", "model.n_layers=1"]}
        done(*words, *short.get(words[0], []))
