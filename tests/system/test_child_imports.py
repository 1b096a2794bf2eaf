"""Child processes execute no file of the working directory that has the name of a module."""

import os
import subprocess
import sys

TXL = "from txlcli.__main__ import main\n\nif __name__ == '__main__':\n    main()\n"
NAMES = ("signal", "selectors", "socket", "struct", "pickle", "numpy", "h5py", "torch", "sentencepiece", "txlcli")
HOSTILE = "open('executed', 'a').write(__name__)\nraise ImportError\n"


def test_workers_import_nothing_from_the_working_directory(tmp_path):
    script = tmp_path / "txl"  # as the console script
    script.write_text(TXL)
    directory = tmp_path / "work"
    directory.mkdir()
    for name in NAMES:
        (directory / f"{name}.py").write_text(HOSTILE)
    text = tmp_path / "book.txt"
    text.write_text("one two three four five\n" * 800_000)  # more than 16 MiB, from which workers read
    command = [sys.executable, script, "prepare", text, "--tokenizer", "word", "--workers", "2"]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONSAFEPATH"}
    ended = subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert not (directory / "executed").exists()
