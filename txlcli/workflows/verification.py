"""Compares files of runs and token stores with their checksums."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal

from txlcli.core.training import checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.errors import TxlError
from txlcli.runs import history, loading, run_directory
from txlcli.runs.run_directory import Run


@dataclass(frozen=True, kw_only=True)
class FileCheck:
    """Result of the check of one file."""

    file: str
    state: Literal["intact", "readable", "damaged", "missing"]
    """intact: equal to its checksums; readable: it has none."""
    error: str | None = None
    """Message for a damaged or missing file."""


def verify_store(path: Path) -> list[FileCheck]:
    """Check the header, the vocabulary and all tokens of a store."""
    if not path.is_file():
        TokenStore.open(path)  # raises the error
    return [_checked(path, lambda: TokenStore.open(path).verify())]


def verify_runs(run_name: str | None, runs_dir: Path) -> list[FileCheck]:
    """Check all files of a run, or of all runs."""
    newest = run_directory.find_directory(run_name, runs_dir)
    directories = [newest] if run_name is not None else sorted(run_directory.newest_first(runs_dir))
    return [check for directory in directories for check in _verify_run(directory)]


def _verify_run(directory: Path) -> Iterator[FileCheck]:
    card = directory / run_directory.CARD
    try:
        run = run_directory.open_run(directory)
    except TxlError as error:
        yield FileCheck(file=str(card), state="damaged", error=str(error))
        return
    yield FileCheck(file=str(card), state="intact" if run.has_checksum else "readable")
    yield _checked(directory / run_directory.VOCAB, partial(loading.read_vocabulary, run))
    for name, read in ((run_directory.METRICS, history.read_reports), (run_directory.EVALS, history.read_evals)):
        if (directory / name).exists():  # each line of a log has a checksum, the file has none
            yield _checked(directory / name, partial(read, run), intact="readable")
    for path in (directory / run_directory.BEST, directory / run_directory.LAST):
        if path.exists():
            yield _checked(path, partial(_verify_checkpoint, path, run))


def _verify_checkpoint(path: Path, run: Run) -> None:
    loading.check_checkpoint(run, checkpoint.load(path), path)


def _checked(path: Path, check: Callable[[], object], *, intact: Literal["intact", "readable"] = "intact") -> FileCheck:
    """Return the result of a check, which raises an error if the file is damaged or missing."""
    try:
        check()
    except (TxlError, OSError, ValueError) as error:
        return FileCheck(file=str(path), state="damaged" if path.exists() else "missing", error=str(error))
    return FileCheck(file=str(path), state=intact)
