"""Mutations: damaged files of every format with checksums, read by the commands that use them.

A result is silently wrong if a command ends with exit code 0, reports no damage and prints another result than with the
undamaged file. A command that fails must leave all files as they were, and no new ones.
"""

import random
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.faults import process, results
from tests.faults.damage import damaged_bytes, is_cut
from tests.faults.table import LEFTOVER, LOST, SILENT, Injection

OTHER = "tf.npz"
"""File that replaces the damaged one now and then."""


@dataclass(frozen=True)
class Target:
    """A file, and the commands that read it."""

    format: str
    file: str
    needs: tuple[str, ...]
    """Files and directories of the sample that the commands need, the file among them."""
    commands: tuple[tuple[str, ...], ...]
    output: str | None = None
    """File that the last command writes."""


EVAL = ("--positions", "40", "--json")
AS_NEW = ("--name", "new", "--json")
NEEDS_HALF = ("runs/half", "data/novel.h5")
HALF = (("runs", "show", "half", "--json"), ("eval", "half", *EVAL), ("train", "--resume", "half", "--json"))
NEW, RESUMED = "runs/new/last.safetensors", "runs/half/last.safetensors"
LOGS = (("runs", "show", "half", "--json"), ("runs", "compare", "half", "word", "--json"), ("runs", "--json"))
TARGETS = (
    *(
        Target(
            "store",
            f"data/{store}.h5",
            (f"data/{store}.h5", f"runs/{run}", "tiny.toml"),
            (
                ("eval", run, *EVAL),
                ("train", "tiny.toml", "--set", f"corpus.store={store}", "--max-steps", "2", *AS_NEW),
            ),
            NEW,
        )
        for store, run in (("novel", "byte"), ("word", "word"))
    ),
    Target("run", "runs/half/run.json", NEEDS_HALF, HALF, RESUMED),
    *(
        Target("log", f"runs/half/{name}", (*NEEDS_HALF, "runs/word"), LOGS)
        for name in ("metrics.jsonl", "evals.jsonl")
    ),
    Target("checkpoint", "runs/half/best.safetensors", NEEDS_HALF, HALF[:2]),
    Target("checkpoint", "runs/half/last.safetensors", NEEDS_HALF, (HALF[0], HALF[2]), RESUMED),
    *(
        Target("vocabulary", f"runs/{run}/vocab.json", (f"runs/{run}", f"data/{run}.h5"), (("eval", run, *EVAL),))
        for run in ("word", "sentencepiece")
    ),
    Target(
        "compressed file",
        "packed",
        ("packed", "runs/byte", "data/novel.h5"),
        (("decompress", "byte", "packed", "back"),),
        "back",
    ),
    *(
        Target("archive", file, (file,), (("prepare", name, "--source", file, "--json"),), f"data/{name}.h5")
        for name, file in (("ptb", "ptb.tgz"), ("text8", "text8.zip"))
    ),
)
FORMATS = tuple(dict.fromkeys(target.format for target in TARGETS))


def _mutate(target, number, seed, sample, expected, output, directory, outcome):
    """Damage one file, and run the commands that read it; compare them with those of the undamaged file."""
    path = directory / target.file
    sample.copy(target.needs, directory)
    intact, other = path.read_bytes(), (sample.directory / OTHER).read_bytes()
    chance = random.Random(f"{seed} {target.file} {number}")
    damage, content = damaged_bytes(intact, other, number, chance)
    path.write_bytes(content)
    outcome.name = f"{outcome.name}: {damage}"
    may_differ = target.format == "log" and is_cut(intact, content)
    for words, printed in zip(target.commands, expected, strict=True):
        before = results.contents(directory)
        ended = outcome.examine(process.run(*words, directory=directory))
        if not ended.done:
            examine_files(before, results.contents(directory), ended, outcome)
        elif not may_differ and "error: " not in ended.stderr and "damaged" not in ended.stderr:
            is_last = words == target.commands[-1]
            if results.stable(ended.stdout) != printed or (is_last and _output(target, directory) != output):
                outcome.add(SILENT, f"{ended.command}: another result")


def examine_files(before, after, ended, outcome):
    """Check that a command that failed has left all files as they were."""
    if lost := [name for name in before if after.get(name) != before[name]]:
        outcome.add(LOST, f"{ended.command}: failed, and changed {', '.join(lost)}; {ended.last_line}")
    if added := [name for name in after if name not in before]:
        outcome.add(LEFTOVER, f"{ended.command}: failed, and left {', '.join(added)}; {ended.last_line}")


def injections(sample, amounts):
    found = []
    for target in TARGETS:
        expected, output = _expected(sample, target)
        for number in range(amounts.mutations):
            act = partial(_mutate, target, number, amounts.seed, sample, expected, output)
            found.append(Injection("mutations", target.format, f"{target.file} #{number}", act))
    return found


def _expected(sample, target):
    """Return the results of the commands with the undamaged file, and the file that the last one writes."""
    with tempfile.TemporaryDirectory(dir=sample.directory.parent) as name:
        directory = sample.copy(target.needs, Path(name))
        ended = [process.run(*words, directory=directory) for words in target.commands]
        output = _output(target, directory)
    for command in ended:
        assert command.done, f"{command.command}: {command.stderr}"
    return [results.stable(command.stdout) for command in ended], output


def _output(target, directory):
    return results.written(directory / target.output) if target.output else None
