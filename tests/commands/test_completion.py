"""Shell completion of runs, recipes, stores, settings, tables and figures; folders from the environment."""

import pytest
from typer.testing import CliRunner

from tests.commands.novel import done, json_of, refusal
from txlcli.cli import app


def completed(line):
    """Return what bash would be offered after a command line."""
    position = str(len(line.split(" ")) - 1)
    environment = {"_TXL_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": position}
    return CliRunner().invoke(app, [], prog_name="txl", env=environment).stdout.split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("txl ev", ["eval"]),
        ("txl eval wo", ["word"]),
        ("txl eval --runs-dir elsewhere wo", []),
        ("txl train --resume sen", ["sentencepiece"]),
        ("txl train no", ["novel"]),
        ("txl train enwik8-1", ["enwik8-18l"]),
        ("txl train enwik8 --set train.lr", ["train.lr="]),
        ("txl train enwik8 --set model.d_h", ["model.d_head=", "model.d_hidden="]),
        ("txl recipes show wt103-l", ["wt103-large", "wt103-large-tf"]),
        ("txl reproduce table1", ["table1", "table10"]),
        ("txl reproduce table6 fr", ["frontier"]),
    ],
)
def test_names_are_completed(here, line, expected):
    assert completed(line) == expected


def test_the_environment_names_the_directories(here, monkeypatch):
    (here / "data").rename(here / "stores")
    (here / "runs").rename(here / "trained")
    monkeypatch.setenv("TXL_DATA_DIR", "stores")
    monkeypatch.setenv("TXL_RUNS_DIR", "trained")
    assert {run["name"] for run in json_of("runs")["runs"]} == {"byte", "char", "word", "sentencepiece"}
    assert json_of("eval", "word", "--mem-len", 0, "--positions", 9)["rows"][0]["tokens"] == 9
    assert done("prepare", "novel", "--name", "again").stdout.splitlines()[-1] == "next: txl train again"
    assert (here / "stores" / "again.h5").is_file()
    (here / "elsewhere").mkdir()
    assert "no run under elsewhere" in refusal("runs", "--runs-dir", "elsewhere", code=1)
