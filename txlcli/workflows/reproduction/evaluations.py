"""Stores the evaluations of a report in its directory, so that none is repeated."""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import txlcli
from txlcli.data.token_store import TokenStore
from txlcli.errors import RunError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import errors_of_writing, replacing
from txlcli.system.input_files import MAX_REPORT, read_text
from txlcli.system.plain_json import parse_json

FILE = "evaluations.json"


@dataclass(frozen=True)
class StoredEvaluation:
    """Result of `txl eval`, and its duration."""

    result: dict[str, Any]
    settings: str
    """Settings in one sentence."""
    seconds: float


class EvaluationStore:
    """Evaluations of runs by everything they depend on, see `key_of`.

    Args:
        directory: directory of the report.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._by_key = self._read()

    def get(self, key: str) -> StoredEvaluation | None:
        """Return an evaluation, or None if there is none."""
        return self._by_key.get(key)

    def add(self, key: str, evaluation: StoredEvaluation) -> None:
        """Add an evaluation."""
        self._by_key[key] = evaluation
        with errors_of_writing(self._path), replacing(self._path) as temporary:
            stored = {key: asdict(one) for key, one in self._by_key.items()}
            temporary.write_text(json.dumps(stored), encoding="utf-8")

    def _read(self) -> dict[str, StoredEvaluation]:
        try:
            stored = parse_json(read_text(self._path, MAX_REPORT))
            return {
                str(key): StoredEvaluation(dict(one["result"]), str(one["settings"]), float(one["seconds"]))
                for key, one in stored.items()
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise RunError(f"{self._path}: damaged ({error}); remove it") from error


def key_of(
    run: Run, store: TokenStore, split: str, options: dict[str, Any], *, machine: str, code: str | None = None
) -> str:
    """Return a digest of everything that an evaluation depends on.

    Args:
        run: its weights and settings count.
        store: all its splits count, since lengths and parameters are searched on valid.
        split: split that is scored.
        options: options of the evaluation.
        machine: device and PyTorch version.
        code: digest of the program; `code_digest()` by default.
    """
    with run.best_or_last.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    texts = {name: store.digest(name) for name in store.splits}
    text = [texts, store.fingerprint, store.conventions, split]
    facts = [code or code_digest(), machine, weights, asdict(run.settings), text, options]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Return a digest of the source files of txl."""
    directory = Path(txlcli.__file__).parent
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
