"""Pipes, sockets, devices and texts without end as inputs of every command: one line, exit code 2, at once."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.commands.novel import done, refusal, txl
from tests.system.test_input_files import SPECIAL

LIMIT_S = 120
INPUTS = {
    "recipe": ("input.toml", ["train", "input.toml", "--name", "new"]),
    "own text": ("input", ["prepare", "input"]),
    "source": ("input", ["prepare", "text8", "--source", "input"]),
    "vocabulary": ("vocab.json", ["prepare", "texts", "--vocab", "vocab.json"]),
    "text to score": ("input", ["eval", "byte", "--text", "input"]),
    "file of losses": ("losses.h5", ["eval", "byte", "--losses", "losses.h5"]),
    "file of losses by context": (
        "recl.h5",
        ["recl", "byte", "--longest", "9", "--start", "3", "--step", "3", "--losses", "recl.h5"],
    ),
    "store": ("data/word.h5", ["eval", "word"]),
    "weights": ("input", ["import", "input", "--recipe", "tiny.toml"]),
    "configuration": ("hf/config.json", ["import", "hf", "--name", "new"]),
}


@pytest.fixture
def input_files(here):
    """Add a folder of texts and an exported run to the current folder; end the test if a file blocks."""
    Path("texts").mkdir()
    for name in ("train.txt", "valid.txt"):
        Path("texts", name).write_text("the fox jumps over the lazy dogs\n" * 31)
    done("export", "word", "hf")

    def blocked(*_):
        raise TimeoutError("the file was opened")

    before = signal.signal(signal.SIGALRM, blocked)
    signal.alarm(LIMIT_S)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    ("name", "kind"), [*((name, "pipe") for name in INPUTS), ("recipe", "socket"), ("own text", "device")]
)
def test_a_special_file_is_rejected_as_input(input_files, name, kind):
    file, command = INPUTS[name]
    Path(file).unlink(missing_ok=True)
    SPECIAL[kind](Path(file))
    message = refusal(*command)
    assert message.endswith(f"{file} is a {kind}, not a regular file; save its content to a file and name that")
    assert not Path("data/new.h5").exists()
    assert not Path("runs/new").exists()


def test_a_pipe_among_the_stores_hides_no_other(here):
    os.mkfifo("data/pipe.h5")
    result = done("prepare", "--list")
    assert "error: data/pipe.h5 is a pipe" in result.stderr
    assert "sentencepiece" in result.stdout


def test_standard_input_may_be_a_pipe_or_a_device(here):
    words = [sys.executable, "-m", "txlcli", "eval", "byte", "--text", "-", "--json"]
    piped = subprocess.run(words, input=b"the fox jumps", capture_output=True, check=True, timeout=LIMIT_S)
    assert b'"tokens": 12' in piped.stdout


def test_a_prompt_without_end_is_rejected(here):
    with Path("/dev/zero").open("rb") as zeros:
        words = [sys.executable, "-m", "txlcli", "generate", "byte", "--prompt", "-"]
        result = subprocess.run(words, stdin=zeros, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr == "error: stdin: larger than 256 KiB, the limit of such a text; give a smaller one\n"


@pytest.mark.parametrize("name", ["run.json", "vocab.json", "metrics.jsonl", "evals.jsonl", "last.safetensors"])
def test_a_pipe_in_a_run_is_rejected_and_hides_no_other_run(here, name):
    path = here / "runs/byte" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert "word" in done("runs").stdout
    verified = txl("runs", "verify", "byte")
    assert verified.exit_code == 1
    if name != "run.json":  # without it, the directory is not a run
        assert f"runs/byte/{name}: damaged" in verified.stdout.splitlines()
