"""Creates, finds and reads run directories.

runs/RUN/run.json            recipe, resolved settings, vocabulary fingerprint, number of parameters
runs/RUN/vocab.json          the vocabulary, so that text can be read and written without the store
runs/RUN/metrics.jsonl       one line per report of training
runs/RUN/evals.jsonl         one line per result of `txl eval`
runs/RUN/trackers.json       id of the run in Weights & Biases
runs/RUN/last.safetensors    the checkpoint that --resume continues from
runs/RUN/best.safetensors    the weights with the lowest validation loss
runs/RUN/step-N.safetensors  the weights of step N (train.keep_every)
runs/.locks/RUN              lock of the process that writes the run
"""

import contextlib
import itertools
import json
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from txlcli.config import recipe
from txlcli.config.ranges import NaturalInt, PositiveInt, from_json
from txlcli.config.settings import Settings
from txlcli.errors import BusyError, MissingPackageError, RunError, TxlError, UnknownNameError, UsageError
from txlcli.runs import log_file
from txlcli.system import locks
from txlcli.system.atomic_files import errors_of_writing, write_text
from txlcli.system.checkpoint_header import digest
from txlcli.system.input_files import MIB, read_text
from txlcli.system.plain_json import parse_json

FORMAT = 1
CARD = "run.json"
VOCAB = "vocab.json"
METRICS = "metrics.jsonl"
EVALS = "evals.jsonl"
LAST = "last.safetensors"
BEST = "best.safetensors"
MAX_CARD = 16 * MIB
"""Largest run.json, in bytes; it grows with every change of settings."""
RUN_ID = "run_id"
"""Key of the id of a run in its other files."""
DIGEST = "checksum"
"""Key of run.json."""
LOCKS = ".locks"
OWN_FILES = re.compile(
    r"(run|vocab|trackers|trace)\.json|(metrics|evals)\.jsonl|(last|best|step-\d+)\.safetensors|(memory|curves)\.png|"
    r"figures/figure\d\.(png|svg|pdf)|report/(report\.(md|html)|(curves|figure\d)\.png)|events\.out\.tfevents\..*"
)
"""Paths in a run that txl and TensorBoard write, which may be deleted with it."""
WANDB_FILES = re.compile(
    r"wandb/(debug[\w-]*\.log|latest-run|settings|wandb-resume\.json|(offline-)?run-\d{8}_\d{6}-\w+/"
    r"(run-\w+\.wandb(\.synced)?|logs/debug[\w-]*\.log|files/(wandb-[\w-]+\.json|config\.yaml|output\.log|"
    r"requirements\.txt|conda-environment\.yaml|diff\.patch)))"
)
"""Paths in a run that Weights & Biases writes."""
DRAFT = re.compile(r"\.(.+)\.new")
"""Name of a file that was being written; run.json is the first."""
OWN_NAMES = re.compile(rf"{OWN_FILES.pattern}|figures|report|wandb")
"""Names in a run, which are regular files and directories: links could lead txl to write elsewhere."""


@dataclass(frozen=True)
class Change:
    """Settings that changed when a run was resumed."""

    step: NaturalInt
    """Last step with the old settings."""
    settings: dict[str, list[Any]]
    """Old and new value by full name; None means off."""


@dataclass(frozen=True)
class Origin:
    """Weights that a run began with."""

    run: str
    """Directory of the run that they were trained in."""
    weights: str
    """File in it."""
    step: NaturalInt
    weights_sha256: str
    new_symbols: NaturalInt
    """Symbols of the vocabulary that had no row in these weights."""


@dataclass(frozen=True, kw_only=True)
class Card:
    """Contents of run.json."""

    format: NaturalInt
    id: str | None = None
    """See `Run.id`."""
    recipe: str
    settings: dict[str, Any]
    vocab_fingerprint: str
    vocab_size: PositiveInt
    parameters: NaturalInt
    metric: Literal["bpc", "ppl"]
    changes: tuple[dict[str, Any], ...] = ()
    origin: dict[str, Any] | None = None
    path: str = ""
    checksum: str | None = None


def new_id() -> str:
    """Return an id that no other run has."""
    return secrets.token_hex(8)


@dataclass(frozen=True)
class Run:
    """One training run on disk."""

    directory: Path
    recipe_name: str
    settings: Settings
    vocab_fingerprint: str
    """Digest of the vocabulary of the weights."""
    vocab_size: int
    parameters: int
    metric: str
    """Unit of displayed losses: "bpc" or "ppl"."""
    changes: tuple[Change, ...] = ()
    """Changes of settings, ordered by step."""
    origin: Origin | None = None
    """None if it began with new weights."""
    path: str = ""
    """How its last steps were computed, see `Step.path`; empty before the first report."""
    weights: Path | None = None
    """File of the weights to read, if the user named one of the run."""
    id: str | None = field(default_factory=new_id, compare=False)
    """Id that its weights, reports and evaluations carry; None for a run of an earlier version."""

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.name

    @property
    def best_or_last(self) -> Path:
        """Checkpoint to evaluate: the one named, else the best one if the run was validated, otherwise the last."""
        if self.weights is not None:
            return self.weights
        best = self.directory / BEST
        if os.path.lexists(best):  # a broken link is an error
            return best
        return self.directory / LAST

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one report to metrics.jsonl."""
        path = self.directory / METRICS
        with errors_of_writing(path):
            log_file.append(path, [self.signed(line)])

    def signed(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return a record for a file of the run, with its id."""
        return record if self.id is None else {**record, RUN_ID: self.id}

    def check_own(self, path: Path, records: Iterable[Mapping[str, Any]]) -> None:
        """Reject a file of another run, given its records; those of earlier versions have no id."""
        for record in records:
            owner = record.get(RUN_ID)
            if None not in (owner, self.id) and owner != self.id:
                raise RunError(
                    f"{path}: belongs to another run than {self.directory / CARD}; restore both from one copy"
                )

    def drop_metrics_after(self, step: int, *, reported: int, validated: int) -> None:
        """Remove reports that a resumed run repeats: of steps after `reported`, of validations after `validated`."""
        path = self.directory / METRICS
        last = {"train": min(step, reported), "valid": min(step, validated)}
        kept = [report for report in log_file.read(path) if report["step"] <= last[report["kind"]]]
        if path.exists():
            write_text(path, "".join(map(log_file.to_line, kept)))


def free_directories(runs_dir: Path, recipe_name: str) -> Iterator[Path]:
    """Yield directories for a new run: the recipe's name, then with -2, -3 ... appended; each is free then."""
    for number in itertools.count(1):
        name = recipe_name if number == 1 else f"{recipe_name}-{number}"
        directory = runs_dir / name
        if not os.path.lexists(directory):
            yield directory


def check_free(directory: Path, *, force: bool, instead: str | None = None) -> None:
    """Reject the directory of another run, unless `force` may replace it; the message advises to do `instead`.

    A run with files of the user is never replaced. A directory with nothing but drafts of a killed start is free.
    """
    if directory.is_symlink():
        raise RunError(f"{directory} is a link; remove it, or choose another `name`")
    if not directory.exists():
        return
    if not directory.is_dir():
        raise RunError(f"{directory} is a file, so no run can have this name; choose another `name`")
    is_run = (directory / CARD).is_file()
    if is_run and not force:
        resume = f"resume it with `resume` {directory.name}" if has_weights(directory) else "it has no checkpoint"
        instead = instead or resume
        raise RunError(f"{directory} exists; {instead}, or replace it with `force`")
    _check_card_is_own(directory)
    others = files_of_user(directory)
    if not is_run and (others or any(not DRAFT.fullmatch(path.name) for path in directory.iterdir())):
        raise RunError(f"{directory} exists and is not a run; choose another `name`")
    if others:
        raise RunError(f"{others[0]} was not written by txl; move it out of the run first, or choose another `name`")


def has_own_card(directory: Path) -> bool:
    """Return False if the run.json of a directory is another program's: JSON, but without what a run has."""
    try:
        table = parse_json(read_text(directory / CARD, MAX_CARD))
    except (OSError, ValueError, TxlError):
        return True  # of a run that is damaged, or has none
    return isinstance(table, dict) and {"format", "settings"} <= set(table)


def _check_card_is_own(directory: Path) -> None:
    if not has_own_card(directory):
        raise RunError(f"{directory / CARD} was not written by txl; move its folder away, or name another run")


def files_of_user(directory: Path) -> list[Path]:
    """Return the files in the directory of a run that neither txl nor a tracker wrote, sorted."""
    return [path for path in sorted(directory.rglob("*")) if not _is_own(path, directory)]


def _is_own(path: Path, directory: Path) -> bool:
    """Return True for a file that txl or a tracker wrote, or was writing, and for each directory."""
    if path.is_dir() and not path.is_symlink():
        return True
    draft = DRAFT.fullmatch(path.name)
    if draft is not None:
        path = path.with_name(draft[1])
    name = path.relative_to(directory).as_posix()
    return bool(OWN_FILES.fullmatch(name) or WANDB_FILES.fullmatch(name))


def delete(directory: Path) -> list[Path]:
    """Delete what txl wrote in the directory of a run; return the files of the user, which are kept."""
    if directory.is_symlink():
        raise RunError(f"{directory} is a link; remove it yourself, or name the folder that it leads to")
    _check_card_is_own(directory)
    with locked(directory), errors_of_writing(directory):
        kept = files_of_user(directory)
        card = directory / CARD
        paths = [path for path in sorted(directory.rglob("*"), reverse=True) if path not in (*kept, card)]
        for path in [*paths, card, directory]:  # the run is one until its last file
            if path.is_symlink() or not path.is_dir():
                path.unlink()
            elif not any(path.iterdir()):
                path.rmdir()
    return kept


def is_file_of_run(path: Path) -> bool:
    """Return True for the path of a file that a run has."""
    return (path.parent / CARD).exists() and OWN_FILES.fullmatch(path.name) is not None


@contextlib.contextmanager
def created(run: Run, vocab_text: str, *, force: bool) -> Iterator[None]:
    """Create the directory of a new run, whose weights the block writes; without a checkpoint it is removed again.

    A run that it replaces is set aside, and restored unless the new one has taken a step.
    """
    directory = run.directory
    settle(directory)
    check_free(directory, force=force)
    try:
        if directory.exists():
            os.replace(directory, aside(directory))
        create(run, vocab_text)
        yield
    finally:
        if not has_weights(directory):
            shutil.rmtree(directory, ignore_errors=True)
        settle(directory)


def create(run: Run, vocab_text: str) -> None:
    """Create the directory of a new run; `vocab_text` is the vocabulary as JSON."""
    with errors_of_writing(run.directory):
        run.directory.mkdir(parents=True)
    update(run)
    write_text(run.directory / VOCAB, vocab_text)


def recover(runs_dir: Path, say: Callable[[str], None]) -> None:
    """Complete or roll back the replacements of runs that killed commands left under `runs_dir`, and say so.

    This needs the lock of the run, so that no process that still works is disturbed.
    """
    for replaced in sorted(runs_dir.glob(aside(Path("*")).name)):
        directory = runs_dir / replaced.name.removeprefix(".").rpartition(".")[0]
        with locks.if_free(runs_dir / LOCKS / directory.name) as free:
            if free:
                try:
                    say(settle(directory))
                except OSError as error:
                    say(f"{replaced} holds the earlier run {directory} and cannot be renamed ({error.strerror})")


def settle(directory: Path) -> str:
    """End the replacement of a run: delete the earlier one, or restore it; return a line about it, or nothing."""
    replaced = aside(directory)
    if not replaced.exists():
        return ""
    is_trained = (directory / LAST).exists() and (directory / METRICS).exists()  # else it was stopped before a step
    if is_trained or (directory / BEST).exists():
        shutil.rmtree(replaced, ignore_errors=True)
        return f"deleted the earlier run {directory}, whose replacement was interrupted after its first checkpoint"
    if directory.exists():
        shutil.rmtree(directory)
    os.replace(replaced, directory)
    return f"restored the run {directory}, whose replacement was interrupted before its first checkpoint"


def aside(directory: Path) -> Path:
    """Return where a run is set aside while another one replaces it."""
    return directory.with_name(f".{directory.name}.replaced")


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a run for writing while the block runs; its directory need not exist yet, and may be a link."""
    if directory.is_symlink():
        directory = directory.resolve()
    lock = directory.parent / LOCKS / directory.name
    with contextlib.suppress(OSError):  # writing to the run reports its own error
        lock.parent.mkdir(parents=True, exist_ok=True)
    busy = f"{directory} is being written by another process; wait for it, or choose another `name`"
    with locks.exclusive(lock, busy):
        yield


def is_busy(directory: Path) -> bool:
    """Return True if another process is writing a run."""
    with locks.if_free(directory.parent / LOCKS / directory.name) as free:
        return free is False


@contextlib.contextmanager
def claimed(directories: Iterable[Path]) -> Iterator[Path]:
    """Lock the first of these directories that no other process has locked, while the block runs."""
    with contextlib.ExitStack() as lock:
        for directory in directories:
            try:
                lock.enter_context(locked(directory))
                break
            except BusyError as error:
                busy = error
        else:
            raise busy
        yield directory


def update(run: Run) -> None:
    """Write run.json."""
    card: dict[str, Any] = {
        "format": FORMAT,
        "id": run.id,
        "recipe": run.recipe_name,
        "settings": recipe.to_table(run.settings),
        "vocab_fingerprint": run.vocab_fingerprint,
        "vocab_size": run.vocab_size,
        "parameters": run.parameters,
        "metric": run.metric,
    }
    if run.changes:
        card["changes"] = [asdict(change) for change in run.changes]
    if run.origin:
        card["origin"] = asdict(run.origin)
    if run.path:
        card["path"] = run.path
    card[DIGEST] = _digest_of(card)
    write_text(run.directory / CARD, json.dumps(card, indent=2) + "\n")


def _digest_of(card: dict[str, Any]) -> str:
    """Return the checksum of run.json without the checksum itself."""
    checked = {key: value for key, value in card.items() if key != DIGEST}
    return digest(json.dumps(checked, sort_keys=True).encode())


def find(run_name: str | None, runs_dir: Path) -> Run:
    """Find a run by its directory or its name under `runs_dir`; None means the most recent one.

    A file of weights in the directory, such as RUN/step-1000.safetensors, is the run with these weights.
    """
    if run_name is None:
        trained = [directory for directory in newest_first(runs_dir) if has_weights(directory)]
        if not trained:
            raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or name a run folder')
        return open_run(trained[0])
    paths = [Path(run_name), runs_dir / run_name]
    for path in paths:
        if path.suffix == ".safetensors" and path.is_file():
            return open_run(path.parent, weights=path)
    directories = [path for path in paths if path.is_dir()]
    if not directories:
        raise UnknownNameError("run", run_name, names(runs_dir), listing='"txl runs" lists all')
    # Another directory of that name, such as a corpus, must not hide the run.
    runs = [directory for directory in directories if (directory / CARD).is_file()]
    return open_run((runs or directories)[0])


def find_directory(run_name: str, runs_dir: Path) -> Path:
    """Find the directory of a run, which may be damaged, by its path or its name under `runs_dir`."""
    for directory in (Path(run_name), runs_dir / run_name):
        if (directory / CARD).is_file():
            return directory
    raise UnknownNameError("run", run_name, names(runs_dir), listing='"txl runs" lists all')


def find_each(run_names: Sequence[str] | None, runs_dir: Path) -> list[Run]:
    """Find several runs by their directories or names; without one, the most recent."""
    runs = [find(run_name, runs_dir) for run_name in run_names or (None,)]
    if len({run.directory.resolve() for run in runs}) < len(runs):
        raise UsageError(f"{', '.join(run_names or ())}: a run is named twice; name each run once")
    return runs


def short_names(directories: Sequence[Path]) -> list[str]:
    """Return distinct labels of runs: their names, or their directories if several have the same name."""
    names = [directory.name for directory in directories]
    if len(set(names)) == len(names):
        return names
    labels = []
    for directory in directories:
        label = directory.name
        if names.count(label) > 1:
            label = str(directory)
        labels.append(label)
    return labels


def names(runs_dir: Path) -> list[str]:
    """Return the names of all runs, sorted."""
    return sorted(directory.name for directory in _all_directories(runs_dir))


def newest_first(runs_dir: Path) -> list[Path]:
    """Return the directories of all runs, with or without weights; the most recently saved comes first."""
    return sorted(_all_directories(runs_dir), key=lambda directory: (-last_written(directory), directory.name))


def any_run(runs_dir: Path) -> bool:
    """Return True if there is a run with weights."""
    return any(map(has_weights, _all_directories(runs_dir)))


def has_weights(directory: Path) -> bool:
    """Return True if a directory holds weights of a run."""
    return (directory / LAST).exists() or (directory / BEST).exists()


def is_run(word: str, runs_dir: Path) -> bool:
    """Return True if the argument is the directory of a run, or its name under `runs_dir`."""
    return (Path(word) / CARD).is_file() or (runs_dir / word / CARD).is_file()


def _all_directories(runs_dir: Path) -> Iterator[Path]:
    for card in runs_dir.glob(f"*/{CARD}"):
        if not card.parent.name.startswith("."):
            yield card.parent


def last_written(directory: Path) -> float:
    """Return the time when a run was last saved, in seconds since the epoch."""
    paths = (directory / CARD, directory / LAST)
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def open_run(directory: Path, *, weights: Path | None = None) -> Run:
    """Read a run directory; `weights` as in `Run`.

    Raises:
        MissingPackageError: another package registers a part of its model or its optimizer, and was not imported.
        RunError: it is not a run, or damaged.
    """
    path = directory / CARD
    if not path.is_file():
        raise RunError(f"{directory} is not a run: it has no {CARD}; name a folder that txl train wrote")
    _check_regular(directory)
    with log_file.reading(path):
        table = parse_json(read_text(path, MAX_CARD))
        if table["format"] != FORMAT:
            raise RunError(f"{path}: written by a newer txl (format {table['format']}); update txl to read it")
        if table.get(DIGEST) not in (None, _digest_of(table)):
            raise ValueError(f"wrong checksum; delete its line '{DIGEST}' if you changed the file yourself")
        card = from_json(Card, table)
        missing = recipe.unregistered(card.settings)
        if missing is not None:
            kind, name = missing
            raise MissingPackageError(path, kind, name)
        origin = None
        if card.origin is not None:
            origin = from_json(Origin, card.origin)
        return Run(
            directory=directory,
            recipe_name=card.recipe,
            settings=recipe.resolve(card.settings, where="settings"),
            vocab_fingerprint=card.vocab_fingerprint,
            vocab_size=card.vocab_size,
            parameters=card.parameters,
            metric=card.metric,
            changes=tuple(from_json(Change, entry) for entry in card.changes),
            origin=origin,
            path=card.path,
            weights=weights,
            id=card.id,
        )


def _check_regular(directory: Path) -> None:
    """Reject links and special files among the files of a run, which may come from someone else."""
    with os.scandir(directory) as entries:
        for entry in entries:
            is_regular = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
            if OWN_NAMES.fullmatch(entry.name) and not is_regular:
                raise RunError(
                    f"{entry.path} is a link or a special file; replace it with a copy of what it stands for"
                )
