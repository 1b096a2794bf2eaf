"""The guides of docs/extending.md: each file, or diff of a copy of the source, is used."""

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.commands.novel import RECIPE as NOVEL
from tests.commands.novel import done, json_of
from tests.extensions import restored_tables

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "extending.md"
RECIPE = NOVEL.replace('"novel"', '"own"')
RUN = """
import json, sys
from typer.testing import CliRunner
from txlcli.cli import app
import txlcli
assert txlcli.__file__.startswith(sys.argv[1]), txlcli.__file__
for command in json.loads(sys.argv[2]):
    result = CliRunner().invoke(app, command)
    if result.exit_code:
        sys.exit(f"{command}: {result.output} {result.exception!r}")
    print(json.dumps(result.stdout))
"""

pytestmark = [
    pytest.mark.skipif(not GUIDE.exists(), reason="no docs here"),
    pytest.mark.skipif(shutil.which("git") is None, reason="git applies the diffs"),
]


def block_of(heading, language):
    """Return the only block of a language in a section of the guide."""
    section = GUIDE.read_text(encoding="utf-8").split(f"## {heading}\n")[1].split("\n## ")[0]
    (block,) = re.findall(rf"^```{language}\n(.*?)^```", section, flags=re.MULTILINE | re.DOTALL)
    return block


def diff_of(heading):
    """Return the diff in a section of the guide."""
    return block_of(heading, "diff")


def changed_source(directory, diff):
    """Copy the source, with what Python has compiled, into a directory and apply a diff to it."""
    for name in ("txlcli", "corpora", "recipes"):
        shutil.copytree(ROOT / name, directory / name, symlinks=True)
    subprocess.run(["git", "apply", "-"], input=diff.encode(), cwd=directory, check=True)


def python(source, directory, code, *words):
    """Run Python code with the changed source; return its standard output."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, "-c", code, *words]
    ended = subprocess.run(words, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def run(source, directory, *commands):
    """Run commands of the changed source; return the standard output of each."""
    printed = python(source, directory, RUN, str(source), json.dumps(commands))
    return [json.loads(line) for line in printed.splitlines()]


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Make a directory with a text and a recipe the current one."""
    directory = tmp_path / "own"
    directory.mkdir()
    text = "".join(f"{number} is followed by {number + 1}.\n" for number in range(400))
    (directory / "own.txt").write_text(text, encoding="utf-8")
    (directory / "own.toml").write_text(RECIPE, encoding="utf-8")
    monkeypatch.chdir(directory)
    return directory


PREPARE = ["prepare", "own.txt", "--tokenizer", "byte", "--name", "own"]


def changes_of(heading):
    """Return options that make the changes of a recipe in a section of the guide."""
    changes = []
    for section, lines in tomllib.loads(block_of(heading, "toml")).items():
        for key, value in lines.items():
            changes += ["--set", f"{section}.{key}={value}"]
    return changes


CHECKED = [
    "Add a rule of memory",
    "Add a feed-forward sublayer",
    "Add an encoding",
    "Change the layers",
    "Change the softmax",
]


@pytest.mark.parametrize("heading", CHECKED)
def test_a_file_of_the_guide_passes_its_check_and_trains_with_the_lines_of_its_recipe(heading, own, capsys):
    (own / "plug_in.py").write_text(block_of(heading, "python"), encoding="utf-8")
    done(*PREPARE)
    with restored_tables():
        runpy.run_path("plug_in.py", run_name="__main__")
        assert "keeps the contract" in capsys.readouterr().out
        done("train", "own.toml", *changes_of(heading))
        without, with_memory = json_of("eval", "own", "--mem-len", "0,11")["rows"]
    assert without["loss_nats"] != with_memory["loss_nats"]


def test_the_benchmark_has_the_mixture_of_the_guide():
    assert (ROOT / "tests" / "benchmarks" / "mixture.py").read_text(encoding="utf-8") == block_of(
        "Change the softmax", "python"
    )


def test_the_optimizer_of_the_guide_passes_its_check_trains_resumes_and_is_counted(own, capsys):
    heading = "Add an optimizer"
    (own / "plug_in.py").write_text(block_of(heading, "python"), encoding="utf-8")
    chosen = changes_of(heading)
    done(*PREPARE)
    with restored_tables():
        runpy.run_path("plug_in.py", run_name="__main__")
        assert "keeps the contract" in capsys.readouterr().out
        step_bytes = json_of("train", "own.toml", *chosen, "--dry-run")["step_bytes"]
        done("train", "own.toml", *chosen, "--max-steps", 2)
        done("train", "--resume", "own")
        (trained,) = json_of("runs")["runs"]
    assert step_bytes["optimizer"] == step_bytes["weights"]
    assert (trained["state"], trained["step"]) == ("finished", 7)


def test_the_architecture_of_the_guide_passes_its_check_trains_resumes_and_is_evaluated_with_its_memory(tmp_path, own):
    changed_source(tmp_path / "source", diff_of("Add an architecture"))
    check = "from txlcli.testing import check_architecture; check_architecture('convolution')"
    python(tmp_path / "source", own, check)
    recipe = re.sub(r"(?m)^(n_heads|d_head|d_inner) = .*\n", "", RECIPE).replace(
        "n_layers", 'arch = "convolution"\nn_layers'
    )
    (own / "own.toml").write_text(recipe, encoding="utf-8")
    _, forecast, _, _, by_memory = run(
        tmp_path / "source",
        own,
        PREPARE,
        ["train", "own.toml", "--dry-run", "--json"],
        ["train", "own.toml", "--max-steps", "2"],
        ["train", "--resume", "own"],
        ["eval", "own", "--mem-len", "0,3,11", "--batch-size", "1", "--json"],
    )
    # Three passes of two layers that multiply 4 positions by 8 x 8, and of the softmax.
    assert json.loads(forecast)["training_flops_per_token"] == 2 * 3 * (2 * 4 * 8 * 8 + 256 * 8)
    none, shortest, longer = (row["loss_nats"] for row in json.loads(by_memory)["rows"])
    assert shortest == pytest.approx(longer, rel=1e-7)  # a layer reads 3 positions before each
    assert none != pytest.approx(longer, rel=1e-7)


def test_the_corpus_of_the_guide_is_prepared(tmp_path, own):
    changed_source(tmp_path / "source", diff_of("Add a corpus"))
    for split in ("train", "valid", "test"):
        (own / f"ptb.char.{split}.txt").write_text(" a _ d o g \n r a n \n", encoding="utf-8")
    prepare = ["prepare", "pennchar", "--source", "."]
    _, result = run(tmp_path / "source", own, prepare, ["prepare", "--list", "--json"])
    (store,) = json.loads(result)["stores"]
    assert store["name"] == "pennchar"
    assert store["vocabulary_size"] == 8  # <eos>, a, _, d, o, g, r, n
