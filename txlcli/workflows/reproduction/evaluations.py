"""Stores the evaluations of a report in its directory, so that none is repeated."""

import functools
import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import txlcli
from txlcli.data.token_store import TokenStore
from txlcli.errors import RunError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import write_text
from txlcli.system.input_files import MAX_REPORT, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.evaluation.evaluate import EvalResult, describe_settings
from txlcli.workflows.options import EvalOptions

FILE = "evaluations.json"
Restored = TypeVar("Restored")


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of `txl eval` that tables need, and their duration."""

    losses: list[tuple[int, float]]
    """Each memory length, 0 in windows, with the mean loss per token in nats."""
    found: int
    """Length that a search has selected; 0 without a search."""
    tried: list[tuple[int, float]]
    """Each length that the search has tried, with the loss in nats."""
    settings: str
    """Settings in one sentence."""
    seconds: float

    @classmethod
    def of(cls, result: EvalResult, seconds: float) -> "Evaluation":
        """Return what tables need of a result."""
        losses = [(row.mem_len, row.loss_nats) for row in result.rows]
        found, tried = (result.search.length, result.search.tried) if result.search else (0, {})
        settings = describe_settings(result, result.rows[0])
        return cls(losses=losses, found=found, tried=list(tried.items()), settings=settings, seconds=seconds)


def read(directory: Path) -> dict[str, Evaluation]:
    """Return the evaluations of the report in a directory by `key_of`."""

    def restore(stored: dict[str, Any]) -> dict[str, Evaluation]:
        return {key: Evaluation(**table) for key, table in stored.items()}

    return read_stored(directory / FILE, restore) or {}


def read_stored(path: Path, restore: Callable[[Any], Restored]) -> Restored | None:
    """Restore what a JSON file of a report has; None if the file is missing."""
    try:
        return restore(parse_json(read_text(path, MAX_REPORT)))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: damaged, or of another version of txl ({error}); remove the folder, or give another `out`"
        ) from error


def write(directory: Path, evaluations: Mapping[str, Evaluation]) -> None:
    """Replace the evaluations of the report in a directory."""
    write_text(directory / FILE, json.dumps({key: asdict(evaluation) for key, evaluation in evaluations.items()}))


def key_of(run: Run, store: TokenStore, options: EvalOptions, *, machine: str) -> str:
    """Return a digest of everything that an evaluation depends on.

    All splits of the store count, since lengths and parameters are searched on valid.
    """
    with run.best_or_last.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    text = [{name: store.digest(name) for name in store.splits}, store.fingerprint, store.conventions]
    facts = [_code_digest(), machine, weights, asdict(run.settings), text, asdict(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def _code_digest() -> str:
    """Return a digest of the source files of txl."""
    total = hashlib.sha256()
    for path in sorted(Path(txlcli.__file__).parent.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
