"""Stores the evaluations of a report in its directory, so that none is repeated."""

import functools
import hashlib
import json
import math
from collections.abc import Mapping
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
from txlcli.workflows.evaluation.evaluate import EvalResult, describe_settings
from txlcli.workflows.options import EvalOptions

FILE = "evaluations.json"


@dataclass(frozen=True, kw_only=True)
class Score:
    """Result for one length."""

    mem_len: int
    loss_nats: float
    """Mean loss per token."""
    measures: dict[str, float]
    """Results by name, such as ppl and bpc."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Results of `txl eval` that tables need, and their duration."""

    rows: list[Score]
    found: int = 0
    """Length that a search has selected; 0 without a search."""
    tried: dict[int, float]
    """Loss in nats by length that the search has tried."""
    settings: str
    """Settings in one sentence."""
    seconds: float

    @classmethod
    def of(cls, result: EvalResult, seconds: float) -> "Evaluation":
        """Return what tables need of a result."""
        rows = []
        for row in result.rows:
            measures = {name: math.inf if value is None else value for name, value in row.measures.items()}
            rows.append(Score(mem_len=row.mem_len, loss_nats=row.loss_nats, measures=measures))
        found, tried = (result.search.found, result.search.tried) if result.search else (0, {})
        settings = describe_settings(result, result.rows[0])
        return cls(rows=rows, found=found, tried=tried, settings=settings, seconds=seconds)

    @classmethod
    def from_json(cls, table: dict[str, Any]) -> "Evaluation":
        """Restore an evaluation from the file, whose keys are text."""
        tried = {int(length): loss for length, loss in table["tried"].items()}
        return cls(**{**table, "rows": [Score(**row) for row in table["rows"]], "tried": tried})


def read(directory: Path) -> dict[str, Evaluation]:
    """Return the evaluations of the report in a directory by `key_of`."""
    path = directory / FILE
    try:
        stored = parse_json(read_text(path, MAX_REPORT))
        return {key: Evaluation.from_json(table) for key, table in stored.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({error}); remove it") from error


def write(directory: Path, evaluations: Mapping[str, Evaluation]) -> None:
    """Replace the evaluations of the report in a directory."""
    path = directory / FILE
    with errors_of_writing(path), replacing(path) as temporary:
        tables = {key: asdict(evaluation) for key, evaluation in evaluations.items()}
        temporary.write_text(json.dumps(tables), encoding="utf-8")


def key_of(run: Run, store: TokenStore, options: EvalOptions, *, machine: str, code: str | None = None) -> str:
    """Return a digest of everything that an evaluation depends on.

    All splits of the store count, since lengths and parameters are searched on valid. `code` is the digest of the
    program, `code_digest()` by default.
    """
    with run.best_or_last.open("rb") as file:
        weights = hashlib.file_digest(file, "sha256").hexdigest()
    text = [{name: store.digest(name) for name in store.splits}, store.fingerprint, store.conventions]
    facts = [code or code_digest(), machine, weights, asdict(run.settings), text, asdict(options)]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


@functools.cache
def code_digest() -> str:
    """Return a digest of the source files of txl."""
    directory = Path(txlcli.__file__).parent
    total = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        total.update(path.read_bytes())
    return total.hexdigest()
