"""Compares files of runs and token stores with their checksums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from txlcli.core.training import checkpoint
from txlcli.data.context_file import ContextFile
from txlcli.data.token_store import TokenStore
from txlcli.errors import TxlError
from txlcli.runs import history, loading, run_directory
from txlcli.runs.run_directory import Run
from txlcli.workflows.options import RECL_LOSSES

FileState = Literal["intact", "readable", "damaged"]


@dataclass(frozen=True)
class FileCheck:
    """Result of the check of one file."""

    path: Path
    state: FileState
    """intact: equal to its checksums; readable: it has none."""
    error: str = ""
    """Message for a damaged file."""


def verify_store(path: Path) -> FileCheck:
    """Check the header, the vocabulary and all tokens of a store.

    Raises:
        StoreError: there is no such file.
    """

    def check() -> bool:
        TokenStore.open(path).verify()
        return True

    if not path.is_file():
        TokenStore.open(path)
    return _checked(path, check)


def verify_runs(run_name: str | None, runs_dir: Path) -> list[FileCheck]:
    """Check all files of a run, or of all runs and of `txl recl`.

    Raises:
        RunError, UnknownNameError: see `run_directory.find`.
    """
    if run_name is not None:
        return list(_verify_run(run_directory.find_directory(run_name, runs_dir)))
    directories = sorted(run_directory.newest_first(runs_dir))
    checks = [check for directory in directories for check in _verify_run(directory)]
    if not directories:
        run_directory.find_directory(None, runs_dir)
    losses = runs_dir / RECL_LOSSES
    if losses.is_file():
        checks.append(_checked(losses, lambda: ContextFile(losses).path == losses))
    return checks


def _verify_run(directory: Path) -> Iterator[FileCheck]:
    card = _checked(directory / run_directory.CARD, lambda: run_directory.open_run(directory).has_checksum)
    yield card
    run = None
    if card.state != "damaged":
        run = run_directory.open_run(directory)
        yield _checked(directory / run_directory.VOCAB, lambda: loading.read_vocabulary(run) is not None)
        for name, read in ((run_directory.METRICS, history.read_reports), (run_directory.EVALS, history.read_evals)):
            if (directory / name).exists():
                yield _checked(directory / name, partial(_is_read, read, run))
    for name in (run_directory.BEST, run_directory.LAST):
        if (directory / name).exists():
            yield _checked(directory / name, partial(_is_verified, directory / name, run))


def _is_read(read: Callable[[Run], object], run: Run) -> bool:
    read(run)
    return False  # logs have no checksums


def _is_verified(path: Path, run: Run | None) -> bool:
    saved = checkpoint.load(path)
    if run is not None:
        loading.check_checkpoint(run, saved, path)
    return saved.verified


def _checked(path: Path, has_checksums: Callable[[], bool]) -> FileCheck:
    """Return the result of a check, which raises an error if the file is damaged."""
    try:
        return FileCheck(path, "intact" if has_checksums() else "readable")
    except (TxlError, OSError, ValueError) as error:
        return FileCheck(path, "damaged", str(error))
