"""`txl runs verify` and `txl prepare --verify`: what is intact, what is damaged."""

from pathlib import Path

import pytest

from tests.commands.novel import done, json_of, refusal, txl
from tests.hdf5_files import flip

pytestmark = pytest.mark.usefixtures("here")


def states(*words):
    return {Path(entry["file"]).name: entry["state"] for entry in json_of(*words)["files"]}


def test_a_run_that_was_not_touched_is_intact():
    done("eval", "byte")
    assert states("runs", "verify", "byte") == {
        **dict.fromkeys(["run.json", "vocab.json", "best.safetensors", "last.safetensors"], "intact"),
        **dict.fromkeys(["metrics.jsonl", "evals.jsonl"], "readable"),
    }


def test_without_a_name_all_runs_are_verified():
    lines = done("runs", "verify").stdout.splitlines()
    assert {line.split("/")[1] for line in lines} >= {"byte", "char", "word"}
    assert not [line for line in lines if line.endswith("damaged")]


@pytest.mark.parametrize("name", ["run.json", "vocab.json", "best.safetensors", "last.safetensors"])
def test_a_damaged_file_is_named_and_the_others_are_verified(name):
    path = Path("runs/byte") / name
    flip(path, path.stat().st_size // 2)
    result = txl("runs", "verify", "byte")
    assert result.exit_code == 1
    assert f"{path}: damaged" in result.stdout.splitlines()
    assert result.stderr.splitlines()[0].startswith(f"error: {path}: ")
    assert result.stderr.splitlines()[-1].startswith("error: 1 of ")


def test_a_missing_file_is_named():
    Path("runs/byte/vocab.json").unlink()
    result = txl("runs", "verify", "byte")
    assert "runs/byte/vocab.json: missing" in result.stdout.splitlines()
    assert result.stderr.splitlines() == [
        "error: runs/byte/vocab.json: missing; restore it from a copy",
        "error: 1 of 5 files are damaged or missing; restore them from copies",
    ]


def test_a_store_is_verified(here):
    assert states("prepare", "--verify", "novel") == {"novel.h5": "intact"}
    flip(here / "data/novel.h5", (here / "data/novel.h5").stat().st_size // 2)
    result = txl("prepare", "--verify", "novel")
    assert result.exit_code == 1
    assert result.stdout == "data/novel.h5: damaged\n"


@pytest.mark.parametrize("words", [["--verify"], ["--verify", "novel", "--force"], ["--verify", "novel", "--list"]])
def test_verify_takes_one_store(words):
    assert refusal("prepare", *words) == "--verify checks one existing store: txl prepare --verify STORE"
