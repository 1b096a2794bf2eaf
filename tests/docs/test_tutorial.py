"""The tutorial runs as it is printed."""

import itertools
import json
import random
import re

import pytest

from tests.commands.novel import done, json_of, txl
from tests.docs.pages import DOCS, blocks, txl_lines

PAGE = DOCS / "tutorial.md"

pytestmark = pytest.mark.skipif(not PAGE.exists(), reason="no tutorial here")


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Change to a directory with a small directory of books, and another text."""
    monkeypatch.chdir(tmp_path)
    books = tmp_path / "books"
    books.mkdir()
    generator = random.Random(3)
    letters = "abcdefghiklmnoprstu"
    words = ["".join(generator.choices(letters, k=generator.randint(2, 9))) for _ in range(1_500)]
    words[:4] = ["the", "old", "then", "house"]
    for name in ("a", "b"):
        lines = (" ".join(generator.choices(words, k=9)).capitalize() + ".\n" for _ in range(400))
        (books / f"{name}.txt").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "other.txt").write_text("The old house then.\n" * 40, encoding="utf-8")
    return tmp_path


def test_the_tutorial_runs_as_printed_with_fewer_steps(here):
    steps = itertools.count(2)
    commands = []
    for language, caption, code in blocks(PAGE.read_text(encoding="utf-8")):
        if language == "toml":
            (here / caption).write_text(code, encoding="utf-8")
        if language != "sh":
            continue
        assert all(line.startswith("txl ") for line in code.strip().splitlines())
        for words in txl_lines(code):
            short = ["--max-steps", str(next(steps))] if words[0] == "train" and "--dry-run" not in words else []
            done(*words, *short)
            commands.append(words[0])
    assert {"prepare", "train", "eval", "generate", "runs"} <= set(commands)
    assert (here / "losses.h5").is_file()
    shown = json_of("runs")["runs"]
    assert {entry["name"] for entry in shown} == {"words", "bytes", "pieces"}
    evaluated = {
        name: json.loads((here / "runs" / name / "evals.jsonl").read_text().splitlines()[0])
        for name in ("words", "bytes", "pieces")
    }
    assert [row["unit"] for row in evaluated.values()] == ["word", "byte", "piece"]
    assert {name for name, row in evaluated.items() if "bits_per_byte" in row} == {"bytes", "pieces"}
    assert {name for name, row in evaluated.items() if "ppl_per_word" in row} >= {"words", "pieces"}


def test_the_messages_of_the_troubleshooting_page_are_those_of_the_program(here):
    printed = (DOCS / "troubleshooting.md").read_text(encoding="utf-8")
    patterns = {without_numbers(line) for line in printed.splitlines() if line.startswith("error: ")}
    done("prepare", "books")
    for words in (
        "train enwik8",
        "train wt103 --set corpus.store=books",
        "train stdlib --set corpus.store=books --set train.batch_size=900000",
        "prepare books",
    ):
        result = txl(*words.split())
        assert result.exit_code != 0
        message = next(line for line in result.stderr.splitlines() if line.startswith("error: "))
        assert any(without_numbers(message).startswith(pattern.removesuffix("...").strip()) for pattern in patterns)


def without_numbers(message):
    """Return a message with # for each number."""
    return re.sub(r"(?<![\w.])[\d,]+(?![\w.])", "#", message)
