"""--force replaces what txl wrote, recognized by its signature, and nothing else."""

from pathlib import Path

import h5py
import pytest

from tests.commands.novel import done, refusal, txl

SHORT = ["--positions", "7", "--quiet"]
COMMANDS = {
    "page.html": ["eval", "byte", *SHORT, "--html", "page.html"],
    "figure.png": ["runs", "plot", "byte", "--plot", "figure.png"],
    "figure.svg": ["runs", "plot", "byte", "--plot", "figure.svg"],
    "figure.pdf": ["runs", "plot", "byte", "--plot", "figure.pdf"],
    "packed": ["compress", "byte", "line", "packed"],
    "data/text.h5": ["prepare", "text", "--name", "text"],
}
"""Commands by the file that they write; test_run_report.py and test_attention.py have those of several files."""


@pytest.fixture
def text(here):
    Path("text").write_text("the fox jumps over lazy dogs\n" * 31)
    Path("line").write_text("the fox\n")


@pytest.mark.parametrize("file", COMMANDS)
def test_a_file_of_txl_is_replaced_with_force_only(text, file):
    done(*COMMANDS[file])
    before = Path(file).stat().st_ino
    assert "--force" in txl(*COMMANDS[file]).stderr
    assert Path(file).stat().st_ino == before
    done(*COMMANDS[file], "--force")
    assert Path(file).stat().st_ino != before


@pytest.mark.parametrize("file", COMMANDS)
def test_a_file_of_the_user_is_kept(text, file):
    Path(file).parent.mkdir(exist_ok=True)
    Path(file).write_text("years of work")
    assert f"{file} does not look like an earlier result" in refusal(*COMMANDS[file], "--force")
    assert Path(file).read_text() == "years of work"


def test_a_store_of_another_program_is_kept(text):
    with h5py.File("data/text.h5", "w") as file:
        file["measured"] = [2, 3, 5]
    before = Path("data/text.h5").read_bytes()
    refusal(*COMMANDS["data/text.h5"], "--force")
    refusal("eval", "byte", *SHORT, "--losses", "data/text.h5", "--force")
    assert Path("data/text.h5").read_bytes() == before


def test_decompress_replaces_no_store_and_no_file_of_a_run(text):
    done(*COMMANDS["packed"])
    for target in map(Path, ("data/novel.h5", "runs/byte/run.json", "runs/byte/best.safetensors")):
        before = target.read_bytes()
        refusal("decompress", "byte", "packed", target, "--force")
        assert target.read_bytes() == before
