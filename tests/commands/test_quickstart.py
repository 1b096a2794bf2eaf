"""txl quickstart: all steps, and the commands to repeat them."""

import re
import shlex
import sysconfig

import pytest

from tests.commands.novel import RECIPE, done, refusal


def small_library(directory, monkeypatch):
    """Replace the standard library by a few files, so that it is prepared quickly."""
    (directory / "library").mkdir()
    for number in range(60):
        text = f"class Reader{number}:\n    def __init__(self, name):\n        self.name = name\n" * 3
        (directory / f"library/module_{number}.py").write_text(text)
    known = {"stdlib": str(directory / "library")}
    get_path = sysconfig.get_path
    monkeypatch.setattr(sysconfig, "get_path", lambda name, *rest: known.get(name) or get_path(name, *rest))


@pytest.fixture
def small(untouched, monkeypatch):
    """Make a small library and a small recipe, which precedes the packaged one of its name."""
    small_library(untouched, monkeypatch)
    recipe = RECIPE.replace('"novel"', '"stdlib"').replace("[eval]\nseg_len = 5", "[eval]\nseg_len = 50")
    (untouched / "stdlib").write_text(recipe)
    return untouched


def commands_in(text):
    """Return the command lines of a text, split into words."""
    return [shlex.split(line.removeprefix("$ txl ")) for line in text.splitlines() if line.startswith("$ txl ")]


def test_all_steps_are_done_and_can_be_repeated(small):
    result = done("quickstart")
    parts = [
        "data/stdlib.h5: stdlib, unit byte, V = 256",
        "7 of 7",
        "runs/quickstart on stdlib test",
        "    def __init__(self, ",
    ]
    positions = [result.stdout.index(part) for part in parts]
    assert positions == sorted(positions)
    ran = commands_in(result.stderr)
    assert [words[0] for words in ran] == ["prepare", "train", "eval", "generate"]
    assert re.findall(r"^step (\d) of 4", result.stderr, flags=re.MULTILINE) == ["1", "2", "3", "4"]
    summary, figure, *following = result.stdout[result.stdout.rindex("\nMemory ") + 1 :].splitlines()
    assert re.match(r"Memory (lowered|did not lower) bits per byte from \d+\.\d{3} without memory", summary)
    assert "runs/quickstart/memory.png" in figure
    assert (small / "runs/quickstart/memory.png").stat().st_size > 0
    assert [shlex.split(line)[:2] for line in following] == [
        ["txl", word] for word in ("generate", "attention", "prepare")
    ]
    assert [path.name for path in (small / "runs").iterdir() if path.name != ".locks"] == ["quickstart"]
    again = ["again" if word == "quickstart" else word for word in ran[1]]
    for words in (again, *ran[2:]):
        done(*words)
    done("export", "quickstart", "exported")
    done("train", "stdlib", "--name", "quickstart", "--force", "--set", "train.clip=none")
    assert "other settings or no checkpoint" in refusal("quickstart", code=1)


def test_a_time_limit_covers_the_evaluation_too(small):
    for path in (small / "library").iterdir():
        path.write_text(path.read_text() * 9)
    result = done("quickstart", "--max-minutes", 0)
    assert 'runs/quickstart/last.safetensors at step 0 of 7; resume with "txl quickstart"' in result.stderr
    assert re.search(r"next +│ +txl quickstart │", result.stdout)
    assert commands_in(result.stderr)[2][-2:] == ["--positions", "1000"]
    assert "runs/quickstart on stdlib test, 1,000 tokens scored" in result.stdout
    assert "trained for 0 of 7 steps only" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stop", "message"),
    [((), "using runs/quickstart, which is finished"), (("--max-steps", 3), "resuming runs/quickstart at step 3 of 7")],
)
def test_a_finished_run_is_used_again_and_an_interrupted_one_resumed(small, stop, message):
    done("prepare", "stdlib")
    done("train", "stdlib")
    done("train", "stdlib", "--name", "quickstart", "--set", "model.norm=post", *stop)
    result = done("quickstart")
    assert message in result.stderr
    assert ("$ txl train --resume runs/quickstart\n" in result.stderr) == bool(stop)
    assert "runs/quickstart on stdlib test" in result.stdout
