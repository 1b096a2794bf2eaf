"""Completes or rolls back what a killed command left in the directory of the runs.

A new run that replaces another one sets it aside as `.RUN.replaced`, creates its directory with vocab.json and
run.json, and deletes the earlier run after its own first checkpoint. A kill can end this anywhere. A state
is changed only under the run's lock, so that no process that still works is disturbed.
"""

import os
from collections.abc import Callable
from pathlib import Path

from txlcli.runs.run_directory import (
    CARD,
    LOCKS,
    VOCAB,
    aside,
    checkpoint_state,
    directory_of_aside,
    has_weights,
    remove,
)
from txlcli.system import locks

DRAFT = ".*.new"
"""Temporary files of `system.atomic_files`."""
FIRST_FILES = {VOCAB, f".{VOCAB}.new", f".{CARD}.new"}
"""Files of a new run before its run.json."""


def recover(runs_dir: Path, say: Callable[[str], None]) -> None:
    """Complete or roll back every interrupted replacement and every interrupted start under `runs_dir`.

    `say` receives one line for everything that is done.
    """
    for replaced in sorted(runs_dir.glob(".*.replaced")):
        directory = directory_of_aside(replaced)
        with locks.if_free(runs_dir / LOCKS / directory.name) as free:
            if free and replaced.is_dir():
                _end_replacement(directory, replaced, say)
    for lock in sorted((runs_dir / LOCKS).glob("*")):  # txl made no directory without a lock file
        directory = runs_dir / lock.name
        if directory.is_dir() and not (directory / CARD).exists() and not aside(directory).exists():
            with locks.if_free(lock) as free:
                if free and {path.name for path in directory.iterdir()} <= FIRST_FILES:
                    remove(directory, ignore_errors=True)
                    say(f"removed {directory}, which an interrupted start left without {CARD}")


def _end_replacement(directory: Path, replaced: Path, say: Callable[[str], None]) -> None:
    if has_weights(directory) and has_progress(directory):
        remove(replaced, ignore_errors=True)
        say(f"deleted the earlier run {directory}, whose replacement was interrupted after its first checkpoint")
        return
    try:
        if directory.exists():
            remove(directory)
        os.replace(replaced, directory)
    except OSError as error:
        say(
            f"{replaced} holds the earlier run {directory} and cannot be renamed ({error.strerror}); "
            "check its permissions"
        )
        return
    say(f"restored the run {directory}, whose replacement was interrupted before its first checkpoint")


def has_progress(directory: Path) -> bool:
    """Return True if the checkpoint of a run is of a step, or imported; a damaged one counts."""
    state = checkpoint_state(directory)
    return state is None or state.get("step") != 0 or "imported_from" in state


def remove_drafts(directory: Path) -> None:
    """Remove temporary files that killed processes left in a run, whose lock the caller holds."""
    for draft in directory.glob(DRAFT):
        draft.unlink(missing_ok=True)
