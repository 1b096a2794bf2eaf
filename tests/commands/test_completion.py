"""Shell completion of runs, recipes, stores, settings, tables and figures."""

import pytest
from typer.testing import CliRunner

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
