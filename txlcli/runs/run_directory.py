"""Creates, finds and reads run directories.

runs/RUN/run.json            recipe, resolved settings, vocabulary fingerprint, number of parameters
runs/RUN/vocab.json          the vocabulary, so that text can be read and written without the store
runs/RUN/metrics.jsonl       one line per report of training
runs/RUN/evals.jsonl         one line per result of `txl eval`
runs/RUN/trackers.json        ids under which experiment trackers know the run
runs/RUN/last.safetensors    the checkpoint that --resume continues from
runs/RUN/best.safetensors    the weights with the lowest validation loss
runs/.locks/RUN              lock of the process that writes the run
"""

import contextlib
import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import RecipeError, RunError, UnknownNameError, UsageError
from txlcli.runs import log_file
from txlcli.system import locks
from txlcli.system.atomic_files import replacing
from txlcli.system.checkpoint_header import digest, read_state
from txlcli.system.input_files import MAX_VOCABULARY, MIB, read_text
from txlcli.system.plain_json import parse_json

FORMAT = 1
CARD, VOCAB, METRICS, LAST, BEST = "run.json", "vocab.json", "metrics.jsonl", "last.safetensors", "best.safetensors"
EVALS = "evals.jsonl"
MAX_CARD = 16 * MIB
"""Largest run.json, in bytes; it grows with every change of settings."""
DIGEST = "checksum"
"""Key of run.json."""
LOCKS = ".locks"


@dataclass(frozen=True)
class Change:
    """Settings that changed when a run was resumed."""

    step: int
    """Last step with the old settings."""
    settings: dict[str, list[Any]]
    """Old and new value by full name; None means off."""


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
    has_checksum: bool = True
    """False if the user changed run.json."""

    @property
    def name(self) -> str:
        """Name of the directory."""
        return self.directory.name

    @property
    def best_or_last(self) -> Path:
        """Checkpoint to evaluate: the best one if the run was validated, otherwise the last."""
        best = self.directory / BEST
        return best if os.path.lexists(best) else self.directory / LAST  # a broken link is an error

    def vocab_text(self) -> str:
        """Return the vocabulary as JSON text."""
        try:
            return read_text(self.directory / VOCAB, MAX_VOCABULARY)
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{self.directory / VOCAB}: cannot be read ({error}); restore it from a copy") from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Append one report to metrics.jsonl."""
        path = self.directory / METRICS
        try:
            log_file.append(path, [line])
        except OSError as error:
            raise _not_written(path, error) from error

    def drop_metrics_after(self, step: int, *, validated: int) -> None:
        """Remove reports of steps that a resumed run repeats, and of validations after the step `validated`."""
        path = self.directory / METRICS
        try:
            kept = log_file.lines_before(path, step=step, validated=validated)
        except OSError as error:
            raise RunError(
                f"{path}: cannot be read ({error.strerror}); restore it from a copy, or delete it"
            ) from error
        if kept is not None:
            _write_text(path, "".join(line + "\n" for line in kept))


def free_directories(runs_dir: Path, recipe_name: str) -> Iterator[Path]:
    """Yield directories for a new run: the recipe's name, then with -2, -3 ... appended; each is free then."""
    for number in itertools.count(1):
        directory = runs_dir / (recipe_name if number == 1 else f"{recipe_name}-{number}")
        if not directory.exists() and not aside(directory).exists():
            yield directory


def check_free(directory: Path, *, force: bool, instead: str | None = None) -> None:
    """Reject the directory of another run, unless `force` may replace it; the message advises to do `instead`."""
    if directory.exists():
        if not force:
            instead = instead or f"resume it with `resume_run` {directory.name}"
            raise RunError(f"{directory} exists; {instead}, or replace it with `force`")
        if not (directory / CARD).is_file():
            raise RunError(f"{directory} exists and is not a run; choose another `name`")


def create(run: Run, vocab_text: str, *, force: bool) -> None:
    """Create the directory of a new run; a run that it replaces is set aside.

    Call `delete_replaced` or `restore_replaced` afterwards. `vocab_text` is the vocabulary as JSON.
    """
    directory = run.directory
    try:
        _put_back(directory)
        check_free(directory, force=force)
        _set_aside(directory)
    except OSError as error:  # the earlier run is still in its directory, so nothing must be restored
        raise _not_written(directory, error) from error
    try:
        directory.mkdir(parents=True)
        _write_text(directory / VOCAB, vocab_text)
        update(run)
    except BaseException as error:
        restore_replaced(run)
        if isinstance(error, OSError):
            raise _not_written(directory, error) from error
        raise


def _put_back(directory: Path) -> None:
    """Rename a run that was set aside to its own name, if its replacement has no directory any more."""
    if not directory.exists() and aside(directory).exists():
        os.replace(aside(directory), directory)


def _set_aside(directory: Path) -> None:
    """Rename the run in this directory, if there is one, to make room for a new run."""
    if not directory.exists():
        return
    if aside(directory).exists() and not has_weights(directory):
        remove(directory)  # left by a killed replacement; the run that was set aside is the one to keep
    else:
        remove(aside(directory), ignore_errors=True)
        os.replace(directory, aside(directory))


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock a run for writing while the block runs; its directory need not exist yet.

    Of a link to a directory, the directory is locked, too: another process may know it by its own name.
    """
    busy = f"{directory} is being written by another process; wait for it, or choose another `name`"
    with contextlib.ExitStack() as held:
        for name in [directory, directory.resolve()] if directory.is_symlink() else [directory]:
            held.enter_context(locks.exclusive(_lock_of(name), busy))
        yield


def _lock_of(directory: Path) -> Path:
    """Return the lock file of a run, in a directory that exists."""
    lock_directory = directory.parent / LOCKS
    try:
        lock_directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not directory.is_dir():  # writing to a run that exists reports its own error
            raise _not_written(directory, error) from error
    return lock_directory / directory.name


def replaces(run: Run) -> bool:
    """Return True if an earlier run was set aside for this one."""
    return aside(run.directory).exists()


def delete_replaced(run: Run) -> None:
    """Delete the earlier run that was set aside: the new run has weights."""
    remove(aside(run.directory), ignore_errors=True)


def restore_replaced(run: Run) -> None:
    """Remove a new run without weights, and restore the earlier run that was set aside."""
    remove(run.directory, ignore_errors=True)
    _put_back(run.directory)


def remove(directory: Path, *, ignore_errors: bool = False) -> None:
    """Delete the directory of a run; if it is a link, only the link."""
    if directory.is_symlink():
        with contextlib.suppress(*([OSError] if ignore_errors else [])):
            directory.unlink()
    else:
        shutil.rmtree(directory, ignore_errors=ignore_errors)


def aside(directory: Path) -> Path:
    """Return where a run is set aside while another one replaces it."""
    return directory.with_name(f".{directory.name}.replaced")


def directory_of_aside(replaced: Path) -> Path:
    """Return the directory that a run was in before it was set aside."""
    return replaced.with_name(replaced.name.removeprefix(".").removesuffix(".replaced"))


def checkpoint_state(directory: Path) -> dict[str, Any] | None:
    """Return the state in the last checkpoint of a run, or in the best one; None if it is damaged or missing."""
    path = directory / LAST if (directory / LAST).exists() else directory / BEST
    try:
        return read_state(path)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def update(run: Run) -> None:
    """Write run.json, after the settings changed."""
    card = {
        "format": FORMAT,
        "recipe": run.recipe_name,
        "settings": recipe.to_table(run.settings),
        "vocab_fingerprint": run.vocab_fingerprint,
        "vocab_size": run.vocab_size,
        "parameters": run.parameters,
        "metric": run.metric,
        **({"changes": [asdict(change) for change in run.changes]} if run.changes else {}),
    }
    _write_text(run.directory / CARD, json.dumps({**card, DIGEST: _digest_of(card)}, indent=2) + "\n")


def _digest_of(card: dict[str, Any]) -> str:
    """Return the checksum of run.json without the checksum itself."""
    return digest(json.dumps({key: value for key, value in card.items() if key != DIGEST}, sort_keys=True).encode())


def _write_text(path: Path, text: str) -> None:
    try:
        with replacing(path) as draft:
            draft.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> RunError:
    return RunError(f"{path}: cannot be written ({error.strerror}); check the folder and the free space")


def find(run_name: str | None, runs_dir: Path, *, data_dir: Path | None = None) -> Run:
    """Find a run by its directory or its name under `runs_dir`; None means the most recent one.

    With the directory of the token stores, `data_dir`, the error says if the name belongs to a store.
    """
    is_run = run_name is None or (runs_dir / run_name).is_dir() or (Path(run_name) / CARD).is_file()
    if not is_run and data_dir is not None and (data_dir / f"{run_name}.h5").is_file():
        # Checked first, since a directory of texts often has the name of its store.
        raise UsageError(
            f'no run "{run_name}", only a token store of this name; train a model on it with "txl train {run_name}"'
        )
    return open_run(find_directory(run_name, runs_dir))


def find_directory(run_name: str | None, runs_dir: Path) -> Path:
    """Find the directory of a run; see `find`."""
    if run_name is None:
        directories = list(_trained_directories(runs_dir))
        if not directories:
            raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or name a run folder')
        return max(directories, key=last_written)
    directories = [directory for directory in (Path(run_name), runs_dir / run_name) if directory.is_dir()]
    if not directories:
        raise UnknownNameError("run", run_name, names(runs_dir), listing='"txl runs" lists all')
    # Another directory of that name, such as a corpus, must not hide the run.
    return next((directory for directory in directories if (directory / CARD).is_file()), directories[0])


def find_each(run_names: Sequence[str], runs_dir: Path) -> list[Run]:
    """Find several runs by their directories or names."""
    runs = [find(run_name, runs_dir) for run_name in run_names]
    directories = [run.directory.resolve() for run in runs]
    for run, directory in zip(runs, directories, strict=True):
        if directories.count(directory) > 1:
            raise UsageError(f"{run.directory} is named twice; name each run once")
    return runs


def short_names(directories: Sequence[Path]) -> list[str]:
    """Return distinct labels of runs: their names, or their directories if several have the same name."""
    names = [directory.name for directory in directories]
    return [directory.name if names.count(directory.name) == 1 else str(directory) for directory in directories]


def names(runs_dir: Path) -> list[str]:
    """Return the names of all runs, sorted."""
    return sorted(directory.name for directory in _all_directories(runs_dir))


def newest_first(runs_dir: Path) -> list[Path]:
    """Return the directories of all runs, with or without weights; the most recently saved comes first."""
    return sorted(_all_directories(runs_dir), key=lambda directory: (-last_written(directory), directory.name))


def any_run(runs_dir: Path) -> bool:
    """Return True if there is a run with weights."""
    return next(_trained_directories(runs_dir), None) is not None


def _trained_directories(runs_dir: Path) -> Iterator[Path]:
    """Yield the directories of runs with weights."""
    return (directory for directory in _all_directories(runs_dir) if has_weights(directory))


def has_weights(directory: Path) -> bool:
    """Return True if a directory holds weights of a run."""
    return (directory / LAST).exists() or (directory / BEST).exists()


def is_run(word: str, runs_dir: Path) -> bool:
    """Return True if the argument is the directory of a run, or its name under `runs_dir`."""
    return any((directory / CARD).is_file() for directory in (Path(word), runs_dir / word))


def _all_directories(runs_dir: Path) -> Iterator[Path]:
    return (card.parent for card in runs_dir.glob(f"*/{CARD}") if not card.parent.name.startswith("."))


def last_written(directory: Path) -> float:
    """Return the time when a run was last saved, in seconds since the epoch; 0 if it has been removed meanwhile."""
    times = []
    for name in (CARD, LAST):
        with contextlib.suppress(OSError):
            times.append((directory / name).stat().st_mtime)
    return max(times, default=0.0)


def open_run(directory: Path) -> Run:
    """Read a run directory."""
    path = directory / CARD
    if not path.is_file():
        raise RunError(f"{directory} is not a run: it has no {CARD}; name a folder that txl train wrote")
    try:
        card = parse_json(read_text(path, MAX_CARD))
        if card["format"] != FORMAT:
            raise RunError(f"{path}: written by a newer txl (format {card['format']}); update txl to read it")
        if card.get(DIGEST) not in (None, _digest_of(card)):
            raise RunError(
                f"{path}: damaged (wrong checksum); restore it from a copy, or delete its line '{DIGEST}' if you "
                "changed the file yourself"
            )
        return Run(
            directory=directory,
            recipe_name=card["recipe"],
            settings=recipe.resolve(card["settings"], where=str(path)),
            vocab_fingerprint=card["vocab_fingerprint"],
            vocab_size=card["vocab_size"],
            parameters=card["parameters"],
            metric=card["metric"],
            changes=tuple(Change(**entry) for entry in card.get("changes", [])),
            has_checksum=DIGEST in card,
        )
    except RecipeError as error:
        raise RunError(f"{error}; the run's settings are damaged, restore {path.name} from a copy") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from a copy") from error
