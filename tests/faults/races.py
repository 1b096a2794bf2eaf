"""Races: two commands that write the same file or run at the same moment."""

from functools import partial

from tests.commands.novel import Saved
from tests.faults import process
from tests.faults.results import content, same_run
from tests.faults.table import LOST, SILENT, TRACEBACK, Injection


def _race(needs, words, sample, check, directory, outcome):
    """Start two commands together, and check what must be true after both: `check(directory, outcome, ended)`."""
    sample.copy(needs, directory)
    processes = [process.start(*each, directory=directory) for each in words]
    ended = []
    for running in processes:
        ended.append(outcome.examine(running.wait()))
        running.close()
    for command in ended:
        if not command.done and command.code not in (1, 2):
            outcome.add(TRACEBACK, f"{command.command}: exit code {command.code}")
    if not any(command.done for command in ended):
        outcome.add(LOST, f"neither succeeded; {ended[0].last_line}; {ended[1].last_line}")
    check(directory, outcome, ended)


def _winner(outcome, ended):
    """Return the words of the command that succeeded, of which there may be one; None if it is not one."""
    succeeded = [command for command in ended if command.done]
    if len(succeeded) == 2:
        outcome.add(SILENT, f"both succeeded: {ended[0].command}; {ended[1].command}")
    return succeeded[0].words if len(succeeded) == 1 else None


def _check_new_store(directory, outcome, ended):
    if words := _winner(outcome, ended):
        expected = process.run(*words, "--data-dir", "alone", directory=directory)
        if not expected.done or content(directory / "data/new.h5") != content(directory / "alone/new.h5"):
            outcome.add(LOST, "data/new.h5 is not the store of the command that succeeded")


def _check_replaced_store(directory, outcome, ended):
    stores = []
    for number, command in enumerate(ended):
        process.run(*command.words, "--data-dir", f"alone{number}", directory=directory)
        stores.append(content(directory / f"alone{number}/novel.h5"))
    if content(directory / "data/novel.h5") not in stores:
        outcome.add(LOST, "data/novel.h5 is the store of neither command")


def _check_new_run(directory, outcome, ended):
    if words := _winner(outcome, ended):
        process.run(*words, "--runs-dir", "alone", directory=directory)
        if not same_run(directory / "runs/new", directory / "alone/new"):
            outcome.add(LOST, "runs/new is not the run of the command that succeeded")


def _check_resumed(directory, outcome, ended):
    """Either may wait for the other; the run must be the one of a single command."""
    process.run("train", "tiny.toml", "--name", "alone", directory=directory)
    if not same_run(directory / "runs/half", directory / "runs/alone"):
        outcome.add(LOST, "runs/half differs from an uninterrupted run")


def _check_imported(directory, outcome, ended):
    _winner(outcome, ended)
    process.run("import", "hf", "--name", "alone", directory=directory)
    if Saved(directory / "runs/new/best.safetensors") != Saved(directory / "runs/alone/best.safetensors"):
        outcome.add(LOST, "runs/new is not the imported run")


TRAIN = ("train", "tiny.toml", "--name", "new")
PREPARE = ("--name", "novel", "--force")
PAIRS = (
    (
        *("prepare", ("novel", "other.txt")),
        (("prepare", "novel", "--name", "new"), ("prepare", "other.txt", "--name", "new")),
        _check_new_store,
    ),
    (
        *("prepare --force", ("novel", "other.txt", "data/novel.h5")),
        (("prepare", "novel", *PREPARE), ("prepare", "other.txt", *PREPARE)),
        _check_replaced_store,
    ),
    ("train", ("tiny.toml", "data/novel.h5"), (TRAIN, (*TRAIN, "--seed", "5")), _check_new_run),
    (
        *("train --resume", ("tiny.toml", "data/novel.h5", "runs/half")),
        (("train", "--resume", "half"),) * 2,
        _check_resumed,
    ),
    ("import", ("hf", "data/word.h5"), (("import", "hf", "--name", "new"),) * 2, _check_imported),
)


def injections(sample, amounts):
    return [
        Injection("races", target, f"#{number}", partial(_race, needs, words, sample, check))
        for target, needs, words, check in PAIRS
        for number in range(amounts.races)
    ]
