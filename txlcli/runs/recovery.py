"""Completes or rolls back what a killed command left in the directory of the runs.

A new run that replaces another one sets it aside as `.RUN.replaced`, and deletes it after its own first checkpoint. A
kill can end this anywhere. A state is changed only under the run's lock, so that no process that still works is
disturbed.
"""

from collections.abc import Callable
from pathlib import Path

from txlcli.runs.run_directory import LOCKS, draft_of, remove, settle
from txlcli.system import locks

DRAFT = ".*.new"
"""Temporary files of `system.atomic_files`, and directories of new runs."""


def recover(runs_dir: Path, say: Callable[[str], None]) -> None:
    """Complete or roll back every interrupted replacement and every interrupted start under `runs_dir`.

    `say` receives one line for every replacement.
    """
    for left in sorted([*runs_dir.glob(".*.replaced"), *runs_dir.glob(DRAFT)]):
        directory = runs_dir / left.name.removeprefix(".").rpartition(".")[0]
        with locks.if_free(runs_dir / LOCKS / directory.name) as free:
            if not free:
                continue
            remove(draft_of(directory), ignore_errors=True)
            try:
                done = settle(directory)
            except OSError as error:
                done = f"{left} holds the earlier run {directory} and cannot be renamed ({error.strerror})"
            if done:
                say(done)


def remove_drafts(directory: Path) -> None:
    """Remove temporary files that killed processes left in a run, whose lock the caller holds."""
    for draft in directory.glob(DRAFT):
        draft.unlink(missing_ok=True)
