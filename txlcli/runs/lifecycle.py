"""Creates, locks, replaces and deletes run directories; a command that is killed loses no run."""

import contextlib
import itertools
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from txlcli.errors import BusyError, RunError, TxlError, reason_of
from txlcli.runs.run_directory import (
    BEST,
    CARD,
    LAST,
    MAX_CARD,
    OWN_FILES,
    VOCAB,
    Run,
    has_weights,
    update,
)
from txlcli.system import locks
from txlcli.system.atomic_files import errors_of_writing, write_text
from txlcli.system.checkpoint_header import read_state
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import read_text
from txlcli.system.plain_json import parse_json

LOCKS = ".locks"
WANDB_FILES = re.compile(
    r"wandb/(debug[\w-]*\.log|latest-run|settings|wandb-resume\.json|(offline-)?run-\d{8}_\d{6}-\w+/"
    r"(run-\w+\.wandb(\.synced)?|logs/debug[\w-]*\.log|files/(wandb-[\w-]+\.json|config\.yaml|output\.log|"
    r"requirements\.txt|conda-environment\.yaml|diff\.patch)))"
)
"""Paths in a run that Weights & Biases writes."""
DRAFT = re.compile(r"\.(.+)\.new")
"""Name of a file that was being written; run.json is the first."""
TEMPORARY = re.compile(r"\.tmp\w{6}")
"""Name of a file that safetensors is writing; the file remains if the process is killed."""


def free_directories(runs_dir: Path, recipe_name: str) -> Iterator[Path]:
    """Yield directories for a new run: the recipe's name, then with -2, -3 ... appended; each is free then."""
    for number in itertools.count(1):
        name = recipe_name if number == 1 else f"{recipe_name}-{number}"
        directory = runs_dir / name
        if not os.path.lexists(directory):
            yield directory


def check_free(directory: Path, *, force: bool) -> None:
    """Reject the directory of another run, unless `force` may replace it.

    A run with files of the user is never replaced. A directory with nothing but drafts of a killed start is free.
    """
    if not os.path.lexists(directory):
        return
    if directory.is_symlink() or not directory.is_dir():
        raise RunError(f"{directory} is a link or a file; choose another `name`")
    is_run = (directory / CARD).is_file()
    if is_run and not force:
        ways = ["choose another `name`"]
        if (directory / LAST).exists():
            ways.append(f'resume it with "{command_line("train", resume=directory)}"')
        raise RunError(f"{directory} exists; {', '.join(ways)}, or replace it with `force`")
    _check_card_is_own(directory)
    others = files_of_user(directory)
    only_drafts = all(DRAFT.fullmatch(path.name) or TEMPORARY.fullmatch(path.name) for path in directory.iterdir())
    if not is_run and (others or not only_drafts):
        raise RunError(f"{directory} exists and is not a run; choose another `name`")
    if others:
        raise RunError(f"{others[0]} was not written by txl; move it out of the run first, or choose another `name`")


def has_foreign_card(directory: Path) -> bool:
    """Return True if the run.json of a directory is another program's: JSON, but without what a run has."""
    try:
        table = parse_json(read_text(directory / CARD, MAX_CARD))
    except (OSError, ValueError, TxlError):
        return False  # it is damaged, or there is none
    return not (isinstance(table, dict) and {"format", "settings"} <= set(table))


def _check_card_is_own(directory: Path) -> None:
    if has_foreign_card(directory):
        raise RunError(f"{directory / CARD} was not written by txl; move its folder away, or name another run")


def files_of_user(directory: Path) -> list[Path]:
    """Return the files in the directory of a run that neither txl nor a tracker wrote, sorted."""
    return [path for path in sorted(directory.rglob("*")) if not _is_own(path, directory)]


def _is_own(path: Path, directory: Path) -> bool:
    """Return True for a file that txl or a tracker wrote, or was writing, and for each directory."""
    if path.is_dir() and not path.is_symlink():
        return True
    if TEMPORARY.fullmatch(path.name):
        return True
    draft = DRAFT.fullmatch(path.name)
    if draft is not None:
        path = path.with_name(draft[1])
    name = path.relative_to(directory).as_posix()
    return bool(OWN_FILES.fullmatch(name) or WANDB_FILES.fullmatch(name))


def check_deletable(directory: Path) -> None:
    """Reject the directory of a run that `delete` cannot delete: a link, another program's, or one being written."""
    if directory.is_symlink():
        raise RunError(f"{directory} is a link; remove it yourself, or name the folder that it leads to")
    _check_card_is_own(directory)
    with locked(directory):
        pass


def remove_temporary_files(directory: Path) -> None:
    """Remove the temporary files that a killed process has left in the directory of a run, which is locked."""
    for path in directory.iterdir():
        if TEMPORARY.fullmatch(path.name) and path.is_file():
            path.unlink()


def delete(directory: Path) -> list[Path]:
    """Delete what txl wrote in the directory of a run; return the files of the user, which are kept."""
    check_deletable(directory)
    with locked(directory), errors_of_writing(directory):
        kept = files_of_user(directory)
        card = directory / CARD
        paths = [path for path in sorted(directory.rglob("*"), reverse=True) if path not in (*kept, card)]
        for path in [*paths, card, directory]:  # the run is one until its last file
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
    return kept


@contextlib.contextmanager
def created(run: Run, vocab_text: str, *, force: bool) -> Iterator[None]:
    """Create the directory of a new run, whose weights the block writes; without a checkpoint it is removed again.

    A run that it replaces is set aside, and restored unless the new one has taken a step.
    """
    directory = run.directory
    settle(directory)
    check_free(directory, force=force)
    try:
        if directory.exists():
            os.replace(directory, aside(directory))
        create(run, vocab_text)
        yield
    finally:
        if not has_weights(directory):
            shutil.rmtree(directory, ignore_errors=True)
        settle(directory)


def create(run: Run, vocab_text: str) -> None:
    """Create the directory of a new run; `vocab_text` is the vocabulary as JSON."""
    with errors_of_writing(run.directory):
        run.directory.mkdir(parents=True)
    update(run)
    write_text(run.directory / VOCAB, vocab_text)


def recover(runs_dir: Path, say: Callable[[str], None]) -> None:
    """Complete or roll back the replacements of runs that killed commands left under `runs_dir`, and say so.

    This needs the lock of the run, so that no process that still works is disturbed.
    """
    for replaced in sorted(runs_dir.glob(aside(Path("*")).name)):
        directory = runs_dir / replaced.name.removeprefix(".").rpartition(".")[0]
        with locks.if_free(runs_dir / LOCKS / directory.name) as free:
            if free:
                try:
                    say(settle(directory))
                except OSError as error:
                    say(f"{replaced} holds the earlier run {directory} and cannot be renamed ({error.strerror})")
                except RunError as error:
                    say(str(error))


def settle(directory: Path) -> str:
    """End the replacement of a run: delete the earlier one, or restore it; return a line about it, or nothing."""
    replaced = aside(directory)
    if not replaced.exists():
        return ""
    if _has_taken_step(directory):
        shutil.rmtree(replaced, ignore_errors=True)
        return f"deleted the earlier run {directory}, whose replacement was interrupted after its first checkpoint"
    if directory.exists():
        shutil.rmtree(directory)
    os.replace(replaced, directory)
    return f"restored the run {directory}, whose replacement was interrupted before its first checkpoint"


def _has_taken_step(directory: Path) -> bool:
    """Return True if a run has weights of a step: one that was stopped before its first step has saved step 0."""
    if (directory / BEST).exists():
        return True
    last = directory / LAST
    if not last.exists():
        return False
    try:
        return bool(read_state(last)["step"])
    except (ValueError, LookupError) as error:
        raise RunError(
            f"{last}: damaged ({reason_of(error)}); the earlier run is {aside(directory)}; remove one of them"
        ) from error


def aside(directory: Path) -> Path:
    """Return where a run is set aside while another one replaces it."""
    return directory.with_name(f".{directory.name}.replaced")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a run for writing while the block runs; its directory need not exist yet, and may be a link."""
    if directory.is_symlink():
        directory = directory.resolve()
    lock = directory.parent / LOCKS / directory.name
    with contextlib.suppress(OSError):  # it exists, or writing to the run reports its own error
        lock.parent.mkdir(parents=True)
        lock.parent.chmod(directory.parent.stat().st_mode & 0o7777)  # who may add a run may lock it
    with locks.exclusive(lock, f"{directory} is being written by another process; wait for it, or name another run"):
        yield


def is_busy(directory: Path) -> bool:
    """Return True if another process is writing a run."""
    with locks.if_free(directory.parent / LOCKS / directory.name) as free:
        return free is False


@contextlib.contextmanager
def claimed(directories: Iterable[Path]) -> Iterator[Path]:
    """Lock the first of these directories that no other process has locked, while the block runs."""
    with contextlib.ExitStack() as lock:
        for directory in directories:
            try:
                lock.enter_context(locked(directory))
                break
            except BusyError as error:
                busy = error
        else:
            raise busy
        yield directory
