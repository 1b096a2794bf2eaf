"""txl quickstart: the whole job, and the commands to repeat it with."""

import dataclasses
import shlex

import corpora
from tests.commands.novel import RECIPE, done, txl


def library_and_recipe(folder, monkeypatch):
    """A standard library of a few files; a small recipe stands for the packaged one, so that it is quick."""
    (folder / "library").mkdir()
    for number in range(60):
        text = f"class Reader{number}:\n    def __init__(self, name):\n        self.name = name\n" * 3
        (folder / f"library/module_{number}.py").write_text(text)
    known = dataclasses.replace(corpora.CORPORA["stdlib"], home=lambda: folder / "library")
    monkeypatch.setitem(corpora.CORPORA, "stdlib", known)
    small = RECIPE.replace('"novel"', '"stdlib"')
    monkeypatch.setattr("txlcli.recipe.packaged", lambda _: ("stdlib", small))


def commands_in(text, start="  txl "):
    """The command lines of a text, as words; a prompt may hold line ends."""
    _, *lines = f"\n{text}".split(f"\n{start}")
    return [shlex.split(line) for line in lines]


def test_the_whole_job_is_done_and_can_be_repeated(untouched, monkeypatch):
    library_and_recipe(untouched, monkeypatch)
    result = done("quickstart")
    parts = [
        "data/stdlib.h5: stdlib, unit byte, V = 256",
        "7 of 7",
        "runs/stdlib on stdlib test",
        "Table 9.",
        "    def __init__(self, ",
    ]
    places = [result.stdout.index(part) for part in parts]
    assert places == sorted(places)
    shown, _, listed = result.stderr.partition("These commands did all of that; repeat them with other words:\n")
    ran = commands_in(listed)
    assert [words[0] for words in ran] == ["prepare", "train", "eval", "speed", "generate"]
    assert all(f"$ {shlex.join(['txl', *words])}\n" in shown for words in ran)
    for words in ran[1:]:
        repeated = txl(*words)
        assert repeated.exit_code == 0, repeated.stderr


def test_a_store_that_is_there_is_taken_and_other_folders_are_named(untouched, monkeypatch):
    library_and_recipe(untouched, monkeypatch)
    where = ["--data-dir", "d", "--runs-dir", "r"]
    done("prepare", "stdlib", "--data-dir", "d")
    result = done("quickstart", "--max-minutes", 0, *where)
    assert sorted(path.name for path in untouched.iterdir()) == ["d", "library", "novel", "r", "tiny.toml"]
    assert "$ txl train stdlib --max-minutes 0 --data-dir d --runs-dir r\n" in result.stderr
    assert "$ txl prepare" not in result.stderr
    (generate,) = [words for words in commands_in(result.stderr) if words[0] == "generate"]
    assert generate[1] == "r/stdlib"
    assert txl(*generate).exit_code == 0
