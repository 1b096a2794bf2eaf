"""Evaluations made for a report, kept in its folder: what was read once is not read again."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from txlcli import __version__
from txlcli.atomic import replacing
from txlcli.errors import RunError, TxlError
from txlcli.runs import Run
from txlcli.token_store import TokenStore

FILE = "evaluations.json"


class KeptEvaluations:
    """What `txl eval` said of runs, by their weights and how they were read.

    Args:
        folder: of the report.

    Raises:
        RunError: the folder's file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._results = self._read()

    def find(self, key: str) -> dict[str, Any] | None:
        """A result, if there is one."""
        return self._results.get(key)

    def keep(self, key: str, result: dict[str, Any]) -> None:
        """Add a result.

        Raises:
            TxlError: it cannot be written.
        """
        self._results[key] = result
        try:
            with replacing(self._path) as beside:
                beside.write_text(json.dumps(self._results), encoding="utf-8")
        except OSError as error:
            raise TxlError(f"{self._path}: cannot be written ({error.strerror}); free some space") from error

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise RunError(f"{self._path}: damaged ({error}); remove it") from error
        if not isinstance(stored, dict):
            raise RunError(f"{self._path}: damaged (no object); remove it")
        return stored


def key_of(run: Run, store: TokenStore, split: str, options: dict[str, Any]) -> str:
    """What a result depends on, as one word: weights, settings, text, how it is read, and by which txl."""
    with run.best_or_last.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    text = [store.source_digest, store.fingerprint, store.conventions, split]
    said = [__version__, weights, asdict(run.settings), text, options]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
