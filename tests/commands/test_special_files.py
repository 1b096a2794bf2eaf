"""Pipes as inputs and outputs of commands, and folders whose names are not UTF-8."""

import os
import signal
from pathlib import Path

import pytest

from tests.commands.novel import done, json_of, refusal, start
from tests.system.test_input_files import SPECIAL

LIMIT_S = 300
INPUTS = {
    "recipe": ("input.toml", ["train", "input.toml", "--name", "new"]),
    "own text": ("input", ["prepare", "input"]),
    "source": ("input", ["prepare", "text8", "--source", "input"]),
    "vocabulary": ("vocab.json", ["prepare", "texts", "--vocab", "vocab.json"]),
    "text to score": ("input", ["eval", "byte", "--text", "input"]),
    "store": ("data/word.h5", ["eval", "word"]),
    "weights": ("input", ["import", "input", "--recipe", "tiny.toml"]),
}


@pytest.fixture
def input_files(here):
    """Add a directory of texts to the current one; end the test if a file blocks."""
    Path("texts").mkdir()
    for name in ("train.txt", "valid.txt"):
        Path("texts", name).write_text("the fox jumps over the lazy dogs\n" * 31)

    def blocked(*_):
        raise TimeoutError("the file was opened")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("name", INPUTS)
def test_a_pipe_is_rejected_as_input(input_files, name):
    file, command = INPUTS[name]
    Path(file).unlink(missing_ok=True)
    SPECIAL["pipe"](Path(file))
    assert f"{file} is a pipe" in refusal(*command)
    assert not Path("data/new.h5").exists()
    assert not Path("runs/new").exists()


def test_a_reader_that_leaves_ends_a_command_as_it_ends_others():
    process = start("recipes", "keys")
    process.stdout.close()
    assert process.wait(LIMIT_S) == 128 + signal.SIGPIPE
    assert process.stderr.read() == ""


@pytest.mark.parametrize("tokenizer", ["byte", "word"])
def test_a_folder_of_stores_has_another_name_than_text(untouched, tokenizer):
    data = "da\udcffta"
    prepared = json_of("prepare", "novel", "--tokenizer", tokenizer, "--data-dir", data)
    os.mkdir(data + "2")
    os.chdir(data + "2")
    (store,) = Path("..", data).glob("*.h5")
    done("export", store.stem, "files", "--format", "parquet", "--data-dir", Path("..", data))
    assert json_of("prepare", "files")["fingerprint"] == prepared["fingerprint"]


def test_a_run_whose_folder_has_another_name_than_text(here):
    name = "by\udcffte"  # as Python reads a byte that is not UTF-8
    os.rename("runs/byte", f"runs/{name}")
    before = json_of("eval", name)["rows"]
    done("train", "--resume", name, "--set", "train.max_steps=11", "--quiet")
    done("train", "--from", name, "--name", "second", "--quiet")
    done("runs", "plot", name)
    done("runs", "report", name, "--samples", "0")
    done("eval", name, "--losses", "losses.h5")
    done("export", name, f"{name}-pt2", "--format", "pt2")
    done("train", "tiny.toml", "--runs-dir", name, "--profile", 2)
    assert len(before) == 1
    assert json_of("runs", "show", name)["step"] == 11
    assert json_of("runs", "show", "second")["origin"]["run"] == f"runs/{name}"
