"""State of a report in its directory: the sections, and the evaluations, so that none is repeated."""

import functools
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

import txlcli
from txlcli.data.token_store import TokenStore
from txlcli.errors import RunError, UsageError
from txlcli.runs.run_directory import Run
from txlcli.system import locks
from txlcli.system.atomic_files import errors_of_writing, write_text
from txlcli.system.input_files import MAX_REPORT, read_text
from txlcli.system.plain_json import parse_json
from txlcli.workflows.evaluation.evaluate import EvalResult, describe_settings
from txlcli.workflows.options import EvalOptions, ReproduceOptions
from txlcli.workflows.reproduction.section import Section

FILE, LOCK = "reproduction.json", ".lock"


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


@dataclass(frozen=True)
class ReportState:
    """Sections and evaluations of a report; both grow, and are written after each."""

    directory: Path
    scale: str
    sections: dict[str, Section] = field(default_factory=dict)
    evaluations: dict[str, Evaluation] = field(default_factory=dict)
    """Evaluations by `key_of`."""

    def write(self) -> None:
        """Replace the stored state."""
        stored = {key: value for key, value in asdict(self).items() if key != "directory"}
        write_text(self.directory / FILE, json.dumps(stored))


@contextmanager
def opened(options: ReproduceOptions) -> Iterator[ReportState]:
    """Yield the state of a report, whose directory is made if necessary, and locked while the block runs."""
    directory, path = options.directory, options.directory / FILE
    with errors_of_writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        # A killed process may have left hidden files only.
        if not path.is_file() and any(not other.name.startswith(".") for other in directory.iterdir()):
            raise UsageError(f"{directory} exists and is not a reproduction; give another `out`")
    with locks.exclusive(
        directory / LOCK, f"another process writes to {directory}; wait for it, or give another `out`"
    ):
        state = _read(path) if path.is_file() else ReportState(directory, options.scale)
        if state.scale != options.scale:
            raise UsageError(f"{directory} is a reproduction at {state.scale} scale; give another `out`")
        yield state


def _read(path: Path) -> ReportState:
    try:
        stored = parse_json(read_text(path, MAX_REPORT))
        sections = {name: Section.from_json(table) for name, table in stored["sections"].items()}
        evaluations = {key: Evaluation(**table) for key, table in stored["evaluations"].items()}
        return ReportState(path.parent, stored["scale"], sections, evaluations)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: damaged, or of another version of txl ({error}); remove the folder, or give another `out`"
        ) from error


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
