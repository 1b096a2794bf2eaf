"""The run folder: where it is, which one is newest, what it holds.

runs/RUN/run.json            recipe, resolved settings, store, vocabulary fingerprint, parameters
runs/RUN/vocab.json          the vocabulary, so that text can be read and written without the store
runs/RUN/metrics.jsonl       one line per report of training
runs/RUN/evals.jsonl         one line per row of `txl eval`
runs/RUN/last.safetensors    the checkpoint that --resume goes on from
runs/RUN/best.safetensors    the weights with the lowest validation loss
runs/.locks/RUN              held by the process that writes the run
"""

import itertools
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.model_settings import ABSOLUTE_POSITIONS
from txlcli.config.settings import Settings
from txlcli.errors import RecipeError, RunError, UnknownNameError, UsageError
from txlcli.system import locks as lock_files
from txlcli.system.atomic_files import replacing

FORMAT = 1
CARD, VOCAB, METRICS, LAST, BEST = "run.json", "vocab.json", "metrics.jsonl", "last.safetensors", "best.safetensors"
EVALS = "evals.jsonl"
LOCKS = ".locks"


@dataclass(frozen=True)
class Change:
    """Settings that a run went on with, other than it had before."""

    step: int
    """The last step with the old ones."""
    settings: dict[str, list[Any]]
    """Old and new value by full name; None where one is off."""

    @classmethod
    def of(cls, entry: dict[str, Any]) -> "Change":
        """What a card keeps of it."""
        return cls(int(entry["step"]), {name: [old, new] for name, (old, new) in entry["settings"].items()})

    def followed_by(self, settings: dict[str, list[Any]]) -> "Change":
        """This change and another after the same step, in one."""
        both = {**self.settings, **settings}
        merged = {name: [self.settings.get(name, pair)[0], pair[1]] for name, pair in both.items()}
        return Change(self.step, {name: [old, new] for name, (old, new) in merged.items() if old != new})


@dataclass(frozen=True)
class Run:
    """One training run on disk."""

    folder: Path
    recipe_name: str
    settings: Settings
    vocab_fingerprint: str
    """Digest of the vocabulary that the weights belong to."""
    vocab_size: int
    parameters: int
    metric: str
    """What losses are shown as: "bpc" or "ppl"."""
    changes: tuple[Change, ...] = ()
    """In the order of the steps."""

    @property
    def name(self) -> str:
        """The folder's name."""
        return self.folder.name

    @property
    def best_or_last(self) -> Path:
        """The checkpoint to evaluate: the best one where there was a validation."""
        best = self.folder / BEST
        return best if best.exists() else self.folder / LAST

    def vocab_text(self) -> str:
        """The vocabulary as JSON text.

        Raises:
            RunError: the file is missing.
        """
        try:
            return (self.folder / VOCAB).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise RunError(f"{self.folder / VOCAB}: cannot be read ({error}); restore it from a copy") from error

    def append_metrics(self, line: dict[str, Any]) -> None:
        """Add one report to metrics.jsonl.

        Raises:
            RunError: the disk is full, or the file cannot be written.
        """
        path = self.folder / METRICS
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise _not_written(path, error) from error

    def drop_metrics_after(self, step: int, *, validated: int) -> None:
        """Forget reports of steps that a resumed run will take again, and of validations after the step `validated`."""
        path = self.folder / METRICS
        if not path.exists():
            return
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        kept = [line for line in lines if _is_before(line, step=step, validated=min(step, validated))]
        _write_text(path, "".join(line + "\n" for line in kept))


def _is_before(line: str, *, step: int, validated: int) -> bool:
    """Whether a line of metrics is of these steps; half a line, as a sudden death leaves it, is of none."""
    try:
        report = json.loads(line)
        return float(report["step"]) <= (validated if report.get("kind") == "valid" else step)
    except (ValueError, KeyError, TypeError, AttributeError):
        return False


def new_folder(runs_dir: Path, *, name: str | None, recipe_name: str) -> Path:
    """The folder for a new run: of that name, or the recipe's with -2, -3 ... appended where that is taken."""
    return runs_dir / name if name is not None else next(free_folders(runs_dir, recipe_name))


def free_folders(runs_dir: Path, recipe_name: str) -> Iterator[Path]:
    """The folders that a new run of a recipe may have, the first one first; each is free when it is asked for."""
    for number in itertools.count(1):
        folder = runs_dir / (recipe_name if number == 1 else f"{recipe_name}-{number}")
        if not folder.exists() and not _aside(folder).exists():
            yield folder


def check_free(folder: Path, *, force: bool, instead: str | None = None) -> None:
    """Refuse the folder of another run, unless `force` may replace it.

    Args:
        folder: of the new run.
        force: whether it may replace a run.
        instead: what the message advises besides --force; to go on with the run by default.

    Raises:
        RunError: the folder is taken.
    """
    if folder.exists():
        if not force:
            instead = instead or f"resume it with --resume {folder.name}"
            raise RunError(f"{folder} exists; {instead}, or replace it with --force")
        if not (folder / CARD).is_file():
            raise RunError(f"{folder} exists and is not a run; choose another --name")


def create(run: Run, vocab_text: str, *, force: bool) -> None:
    """Make the folder of a new run. A run that it replaces waits aside until `delete_replaced` or `restore_replaced`.

    Args:
        run: what its card will say.
        vocab_text: the vocabulary as JSON text.
        force: replace a run that is there.

    Raises:
        RunError: the name is taken, or the folder cannot be made.
    """
    folder = run.folder
    try:
        _put_back(folder)
        check_free(folder, force=force)
        _set_aside(folder)
    except OSError as error:  # the run that was to be replaced is still in its place: nothing may be undone
        raise _not_written(folder, error) from error
    try:
        _make_folder(folder)
        _write_text(folder / VOCAB, vocab_text)
        update(run)
    except BaseException:
        restore_replaced(run)
        raise


def _put_back(folder: Path) -> None:
    """Give a run its place again that a replacement had set aside and then lost its own folder, by whatever hand."""
    if not folder.exists() and _aside(folder).exists():
        os.replace(_aside(folder), folder)


def _set_aside(folder: Path) -> None:
    """Make room for a new run: rename the one that has its folder, if there is one."""
    if not folder.exists():
        return
    if _aside(folder).exists() and not has_weights(folder):
        shutil.rmtree(folder)  # a replacement that was killed: the run aside is the good one
    else:
        shutil.rmtree(_aside(folder), ignore_errors=True)
        os.replace(folder, _aside(folder))


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise _not_written(folder, error) from error


def locked(folder: Path) -> AbstractContextManager[None]:
    """Be the only process that writes a run, from before its folder is made, while the block runs.

    Raises:
        BusyError: another process writes it.
        RunError: the folder of runs cannot be made.
    """
    locks = folder.parent / LOCKS
    try:
        locks.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        if not folder.is_dir():  # a run that is there may lie where nobody can write; it says so itself
            raise _not_written(folder, error) from error
    return lock_files.alone(
        locks / folder.name,
        f"{folder} is being written by another process; wait for it, or choose another --name",
    )


def replaces(run: Run) -> bool:
    """Whether another run waits aside, which `delete_replaced` would delete and `restore_replaced` put back."""
    return _aside(run.folder).exists()


def delete_replaced(run: Run) -> None:
    """The new run has saved weights: delete the one that it replaced."""
    shutil.rmtree(_aside(run.folder), ignore_errors=True)


def restore_replaced(run: Run) -> None:
    """The new run came to nothing: remove it, and put back the one that it replaced."""
    shutil.rmtree(run.folder, ignore_errors=True)
    _put_back(run.folder)


def _aside(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def update(run: Run) -> None:
    """Write the run's card again, after its settings changed."""
    _write_text(run.folder / CARD, json.dumps(_card(run), indent=2) + "\n")


def _card(run: Run) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "recipe": run.recipe_name,
        "settings": recipe.to_table(run.settings),
        "vocab_fingerprint": run.vocab_fingerprint,
        "vocab_size": run.vocab_size,
        "parameters": run.parameters,
        "metric": run.metric,
        **({"changes": [asdict(change) for change in run.changes]} if run.changes else {}),
    }


def _write_text(path: Path, text: str) -> None:
    try:
        with replacing(path) as beside:
            beside.write_text(text, encoding="utf-8")
    except OSError as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: OSError) -> RunError:
    return RunError(f"{path}: cannot be written ({error.strerror}); check the folder and the free space")


def find(run_name: str | None, runs_dir: Path) -> Run:
    """The run that a user means: a folder, a name under `runs_dir`, or the newest where nothing is said.

    Raises:
        RunError: there is none, it is no run, or a newer txl wrote it.
        UnknownNameError: no run of that name.
    """
    if run_name is None:
        folders = list(_trained_folders(runs_dir))
        if not folders:
            raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or name a run folder')
        return open_run(max(folders, key=last_written))
    folders = [folder for folder in (Path(run_name), runs_dir / run_name) if folder.is_dir()]
    for folder in folders:  # a folder of that name that is no run, a corpus say, must not hide the run
        if (folder / CARD).is_file():
            return open_run(folder)
    if folders:
        return open_run(folders[0])
    raise UnknownNameError("run", run_name, names(runs_dir))


def find_each(run_names: Sequence[str], runs_dir: Path) -> list[Run]:
    """The runs that a user names, in their order.

    Raises:
        UsageError: a run is named twice.
        RunError, UnknownNameError: see `find`.
    """
    named = [find(one, runs_dir) for one in run_names]
    folders = [run.folder.resolve() for run in named]
    for run, folder in zip(named, folders, strict=True):
        if folders.count(folder) > 1:
            raise UsageError(f"{run.folder} is named twice; name each run once")
    return named


def short_names(folders: Sequence[Path]) -> list[str]:
    """What to call runs that stand side by side: their names, or their folders where two have one name."""
    names = [folder.name for folder in folders]
    return [folder.name if names.count(folder.name) == 1 else str(folder) for folder in folders]


def names(runs_dir: Path) -> list[str]:
    """The names of all runs, sorted."""
    return sorted(folder.name for folder in _all_folders(runs_dir))


def newest_first(runs_dir: Path) -> list[Path]:
    """The folders of all runs, with weights or without; the one that was saved last comes first."""
    return sorted(_all_folders(runs_dir), key=lambda folder: (-last_written(folder), folder.name))


def any_run(runs_dir: Path) -> bool:
    """Whether there is a run with weights."""
    return next(_trained_folders(runs_dir), None) is not None


def _trained_folders(runs_dir: Path) -> Iterator[Path]:
    """Runs that have saved weights: a training that died before left nothing to work with."""
    return (folder for folder in _all_folders(runs_dir) if has_weights(folder))


def has_weights(folder: Path) -> bool:
    """Whether a folder holds weights of a run."""
    return (folder / LAST).exists() or (folder / BEST).exists()


def is_run(word: str, runs_dir: Path) -> bool:
    """Whether a user's word means a run: a folder, or a name under `runs_dir`."""
    return any((folder / CARD).is_file() for folder in (Path(word), runs_dir / word))


def _all_folders(runs_dir: Path) -> Iterator[Path]:
    return (card.parent for card in runs_dir.glob(f"*/{CARD}") if not card.parent.name.startswith("."))


def last_written(folder: Path) -> float:
    """When a run was saved last, in seconds of the epoch."""
    return max((folder / name).stat().st_mtime for name in (CARD, LAST) if (folder / name).exists())


def _without_idle(table: dict[str, Any]) -> dict[str, Any]:
    """A card's settings without the limit on distance that runs with absolute positions could have, to no effect."""
    model, reading = table.get("model"), table.get("eval")
    if not (isinstance(model, dict) and isinstance(reading, dict) and model.get("position") in ABSOLUTE_POSITIONS):
        return table
    return {**table, "eval": {key: value for key, value in reading.items() if key != "max_distance"}}


def open_run(folder: Path) -> Run:
    """Read a run folder.

    Raises:
        RunError: not a run, damaged, or written by a newer txl.
    """
    path = folder / CARD
    if not path.is_file():
        raise RunError(f"{folder} is not a run: it has no {CARD}; a run is what txl train writes")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        if card["format"] > FORMAT:
            raise RunError(f"{path}: written by a newer txl (format {card['format']}); update txl to read it")
        return Run(
            folder=folder,
            recipe_name=card["recipe"],
            settings=recipe.resolve(_without_idle(card["settings"]), where=str(path)),
            vocab_fingerprint=card["vocab_fingerprint"],
            vocab_size=card["vocab_size"],
            parameters=card["parameters"],
            metric=card["metric"],
            changes=tuple(Change.of(entry) for entry in card.get("changes", [])),
        )
    except RecipeError as error:
        raise RunError(f"{error}; the run's settings are damaged, restore {path.name} from a copy") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{path}: damaged ({type(error).__name__}: {error}); restore it from a copy") from error
