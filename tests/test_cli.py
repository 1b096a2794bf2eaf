"""The command line as a whole: imports, help, unknown commands, signals."""

import signal
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.commands.novel import refusal, txl
from tests.samples import sampled
from txlcli import __version__
from txlcli.data.token_store import TokenStore


def python(*arguments):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, timeout=300)


def test_a_tilde_that_the_shell_left_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert f"no run under {tmp_path}/home/runs" in txl("runs", "--runs-dir=~/runs").stderr
    monkeypatch.setenv("TXL_DATA_DIR", "~/stores")
    assert f"no token stores in {tmp_path}/home/stores" in txl("prepare", "--list").output
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("chosen", "used"),
    [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "PASSIVE"}, None)],
)
def test_threads_spin_shortly_unless_the_user_has_chosen_how_they_wait(monkeypatch, chosen, used):
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    ended = python("-c", "import os, txlcli; print(os.environ.get('GOMP_SPINCOUNT'))")
    assert ended.stdout == f"{used}\n"
    if used != "7":
        ended = python("-c", "import torch, txlcli; print(txlcli.THREADS_SLEEP)")
        assert ended.stdout == f"{bool(chosen)}\n"  # PyTorch was imported too early, unless the user has chosen


def test_a_warning_of_a_library_is_one_line():
    script = "import atexit, sys, warnings; from txlcli.__main__ import main; sys.argv = ['txl', '--version']\n"
    script += "atexit.register(warnings.warn, 'It is slow,\\n  but it runs.'); main()"
    assert python("-c", script).stderr == "It is slow, but it runs.\n"


@pytest.mark.parametrize("arguments", [["--help"], [], ["--version"]])
def test_help_and_version_are_shown_on_stdout(arguments):
    ended = python("-m", "txlcli", *arguments)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.startswith(f"txl {__version__}\n" if "--version" in arguments else "Usage: txl")
    assert ("quickstart" in ended.stdout) == ("--version" not in arguments)


def test_an_option_before_its_command_is_answered_with_the_order():
    assert "--quiet comes after the command" in txl("--quiet", "info").stderr
    assert "unknown option --steps" in txl("--steps", "info").stderr


def test_a_command_of_a_group_is_answered_with_its_group():
    assert 'did you mean "txl runs report"?' in txl("report", "quickstart").stderr


def test_a_wrong_choice_is_answered_with_the_word_that_was_meant():
    error = txl("prepare", "book.txt", "--tokenizer", "wrod").stderr
    assert error.startswith("error: Invalid value for '--tokenizer': 'wrod' is not one of 'byte'")
    assert 'did you mean "word"?' in error


WRONG_NAMES = [
    *(f"{command} nowhere".split() for command in ("eval", "generate", "train", "prepare", "speed")),
    *(f"{command} nowhere".split() for command in ("probe", "attention", "recl", "runs show", "runs report")),
    *([command, "nowhere", "in", "out"] for command in ("compress", "decompress")),
    *(["train", "--resume", "nowhere"], ["export", "nowhere", "folder"], ["speed", "--attn-len", "long"]),
]


def test_a_wrong_name_is_reported_before_pytorch_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    script = f"""
import sys
from txlcli.cli import app
for words in {WRONG_NAMES!r}:
    try:
        app(words)
    except SystemExit as end:
        print(end.code in (1, 2), "torch" in sys.modules)
"""
    ended = python("-c", script)
    assert ended.stdout == "True False\n" * len(WRONG_NAMES)
    assert [line for line in ended.stderr.splitlines() if not line.startswith("error: ")] == []


def test_sigterm_removes_unfinished_files(tmp_path):
    (tmp_path / "book.txt").write_text("one two three four five\n" * 1_000_000)
    command = [sys.executable, "-m", "txlcli", "prepare", "book.txt", "--tokenizer", "word"]
    process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    assert process.stderr.readline().startswith("preparing ")
    process.send_signal(signal.SIGTERM)
    assert process.wait(300) == 143
    assert "Traceback" not in process.stderr.read()
    assert list(tmp_path.glob("data/*")) == []
    assert list(tmp_path.glob("data/.*")) == []


STARTING = """
import os, signal, sys

class Terminating:
    module, sent = sys.argv[1:]

    def find_spec(self, name, *_):
        if name == self.module:
            os.kill(os.getpid(), getattr(signal, self.sent))

sys.meta_path.insert(0, Terminating())
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell begins without it
sys.argv[:] = ["txl", "info"]
from txlcli.__main__ import main
main()
"""


ENDS = {"SIGTERM": (143, "terminated"), "SIGINT": (130, "interrupted"), "SIGHUP": (129, "terminal closed")}


@pytest.mark.parametrize(("module", "name"), sampled(3, ["txlcli.cli", "torch"], ENDS))
def test_a_signal_during_start_up_ends_with_one_line(tmp_path, module, name):
    command = [sys.executable, "-c", STARTING, module, name]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    code, word = ENDS[name]
    # A signal that came during an import acts after it; a short command may have written its result by then.
    assert (ended.returncode, ended.stderr) == (code, f"{word}\n")


def prepared_with(directory, closing):
    """Prepare a text in a shell that closes or redirects some of the streams."""
    (directory / "book.txt").write_text("one two three four five\n" * 999)
    words = ["sh", "-c", f'"$@" prepare book.txt --json {closing}', "sh", sys.executable, "-m", "txlcli"]
    return subprocess.run(words, cwd=directory, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.parametrize("closing", [">&-", "<&- >&- 2>&-"])
def test_a_closed_stdout_is_an_error_and_takes_no_file(tmp_path, closing):
    ended = prepared_with(tmp_path, closing)
    said = "error: stdout: cannot be written (Bad file descriptor); free some space, or redirect it elsewhere\n"
    assert (ended.returncode, ended.stdout) == (1, "")
    assert ended.stderr.endswith("" if "2>" in closing else said)
    assert "Traceback" not in ended.stderr
    TokenStore.open(tmp_path / "data/book.h5").verify()


def test_the_wheel_holds_every_package():
    root = Path(__file__).parents[1]
    with (root / "pyproject.toml").open("rb") as file:
        listed = set(tomllib.load(file)["tool"]["setuptools"]["packages"])
    in_tree = {".".join(path.relative_to(root).parent.parts) for path in (root / "txlcli").rglob("__init__.py")}
    assert listed == in_tree | {"txlcli.corpora", "txlcli.recipes"}  # links to directories beside txlcli


TWICE = "is given twice"
REJECTED = [  # words of a command line, a telling word
    (["train", "ptb", "--name", "a", "--name=a"], TWICE),
    (["eval", "--same-length", "--no-same-length"], TWICE),
    (["runs", "list", "--runs-dir", "a", "--runs-dir", "b"], TWICE),
    (["train", "ptb", "--set", "train.lr=1", "--set", "train.lr = 2"], TWICE),
    (["train", "ptb", "--set", "train.seed=1", "--seed", "2"], TWICE),
    (["speed", "ptb", "--set", "train.lr=1", "--set", "train.lr=1"], TWICE),
    (["recipes", "scale", "ptb", "--set", "train.lr=1", "--set", "train.lr=2"], TWICE),
    (["import", "weights", "--set", "train.lr=1", "--set", "train.lr=2"], TWICE),
    (["export", "runs/r", ""], "FOLDER is empty"),
    (["prepare", ""], "NAME|PATH is empty"),
    (["eval", "r", "--mem-len", "0", "64"], "several values of --mem-len are separated by commas"),
    (["eval", "r", "--text", "a", "b"], "for several values, repeat --text"),
    (["eval", ""], "MODEL is empty"),
    (["runs", "compare", "a", ""], "RUN... is empty"),
    (["train", "ptb", "--runs-dir", ""], "--runs-dir is empty"),
    (["train", "--resume", ""], "--resume is empty"),
    (["prepare", "text", "--encoding", ""], "--encoding is empty"),
    (["attention", "--out", ""], "--out is empty"),
    (["generate", "--prompt", ""], "--prompt is empty"),
    (["eval", "--mem-len", ""], "--mem-len is empty"),
]


@pytest.mark.parametrize(("line", "telling"), REJECTED)
def test_a_repeated_option_and_an_empty_value_are_rejected(line, telling):
    assert telling in refusal(*line)
