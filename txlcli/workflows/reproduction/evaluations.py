"""Evaluations made for a report, kept in its folder: what was read once is not read again."""

import functools
import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import txlcli
from txlcli.data.token_store import TokenStore
from txlcli.errors import RunError, TxlError
from txlcli.runs.run_folder import Run
from txlcli.system.atomic_files import replacing

FILE = "evaluations.json"


@dataclass(frozen=True)
class Kept:
    """What `txl eval` said, and how long that took."""

    result: dict[str, Any]
    seconds: float


class KeptEvaluations:
    """Evaluations of runs by what they depend on, `key_of`.

    Args:
        folder: of the report.

    Raises:
        RunError: the folder's file is damaged.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._by_key = self._read()

    def find(self, key: str) -> Kept | None:
        """An evaluation, if there is one."""
        return self._by_key.get(key)

    def keep(self, key: str, evaluation: Kept) -> None:
        """Add an evaluation.

        Raises:
            TxlError: it cannot be written.
        """
        self._by_key[key] = evaluation
        try:
            with replacing(self._path) as beside:
                stored = {key: asdict(one) for key, one in self._by_key.items()}
                beside.write_text(json.dumps(stored), encoding="utf-8")
        except OSError as error:
            raise TxlError(
                f"{self._path}: cannot be written ({error.strerror}); check the folder and the free space"
            ) from error

    def _read(self) -> dict[str, Kept]:
        try:
            stored = json.loads(self._path.read_text(encoding="utf-8"))
            by_key = {str(key): Kept(dict(one["result"]), float(one["seconds"])) for key, one in stored.items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RunError(f"{self._path}: damaged ({error}); remove it") from error
        return by_key


def key_of(run: Run, store: TokenStore, split: str, options: dict[str, Any], *, machine: str) -> str:
    """What an evaluation depends on, as one word.

    Args:
        run: its weights and settings.
        store: all its splits, since lengths and shares are searched on valid.
        split: that is scored.
        options: how it is read.
        machine: what computes: device and PyTorch.
    """
    with run.best_or_last.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    texts = {name: store.digest(name) for name in store.splits}
    text = [texts, store.fingerprint, store.conventions, split]
    said = [_code(), machine, weights, asdict(run.settings), text, options]
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@functools.cache
def _code() -> str:
    """Digest of txl itself."""
    folder = Path(txlcli.__file__).parent
    total = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
