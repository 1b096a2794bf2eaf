"""Child processes execute no file of the working directory that has the name of a module."""

import os
import subprocess
import sys

import pytest

TXL = "from txlcli.__main__ import main\n\nif __name__ == '__main__':\n    main()\n"
NAMES = ("signal", "selectors", "socket", "struct", "pickle", "numpy", "h5py", "torch", "sentencepiece", "txlcli")
HOSTILE = "open('executed', 'a').write(__name__)\nraise ImportError\n"


@pytest.fixture
def hostile(tmp_path, monkeypatch):
    """Make a directory of modules, enter it, and return the words that start txl as its console script does."""
    script = tmp_path / "bin/txl"
    script.parent.mkdir()
    script.write_text(TXL)
    directory = tmp_path / "work"
    directory.mkdir()
    for name in NAMES:
        (directory / f"{name}.py").write_text(HOSTILE)
    monkeypatch.chdir(directory)
    return [sys.executable, script]


def run(words, *arguments):
    command = [*words, *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert ended.returncode == 0, ended.stderr
    assert not os.path.exists("executed")


def test_workers_import_nothing_from_the_working_directory(hostile, tmp_path):
    text = tmp_path / "book.txt"
    text.write_text("one two three four five\n" * 800_000)  # more than 16 MiB, from which workers read
    run(hostile, "prepare", text, "--tokenizer", "word", "--workers", 2)
