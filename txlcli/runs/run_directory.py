"""Finds and reads run directories, and writes run.json; `lifecycle` creates, replaces and deletes them.

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

import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from txlcli.config import recipe
from txlcli.config.ranges import NaturalInt, PositiveInt, from_json
from txlcli.config.settings import Settings
from txlcli.errors import MissingPackageError, RunError, UnknownNameError, UsageError
from txlcli.runs import log_file
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
OWN_FILES = re.compile(
    r"(run|vocab|trackers|trace)\.json|(metrics|evals)\.jsonl|(last|best|step-\d+)\.safetensors|(memory|curves)\.png|"
    r"figures/figure\d\.(png|svg|pdf)|report/(report\.(md|html)|(curves|figure\d)\.png)|events\.out\.tfevents\..*"
)
"""Paths in a run that txl and TensorBoard write, which may be deleted with it."""
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
    """Number of symbols of the vocabulary that these weights have no embedding for."""


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
    corpus: str | None = None
    """See `Run.corpus`."""
    changes: tuple[dict[str, Any], ...] = ()
    origin: dict[str, Any] | None = None
    path: str = ""
    checksum: str | None = None


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
    corpus: str | None = None
    """Corpus of its store; None if it began without one, or with an earlier version: then the store's name tells."""
    changes: tuple[Change, ...] = ()
    """Changes of settings, ordered by step."""
    origin: Origin | None = None
    """None if it began with new weights."""
    path: str = ""
    """How its last steps were computed, see `Stepper.path`; empty before the first report."""
    weights: Path | None = None
    """File of the weights to read, if the user named one of the run."""
    id: str | None = field(default_factory=lambda: secrets.token_hex(8), compare=False)
    """Id that no other run has, which its weights, reports and evaluations carry; None for an earlier version's run."""

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

    @property
    def subject(self) -> Path:
        """Directory, or file of the weights if the user named one, which results and messages show."""
        return self.weights or self.directory

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


def is_file_of_run(path: Path) -> bool:
    """Return True for the path of a file that a run has."""
    return (path.parent / CARD).exists() and OWN_FILES.fullmatch(path.name) is not None


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
    if run.corpus:
        card["corpus"] = run.corpus
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

    A file of weights in the directory, such as RUN/step-1000.safetensors, is the run with these weights. Commands call
    this before they import PyTorch, so that a wrong name is reported at once.
    """
    if run_name is None:
        trained = [directory for directory in newest_first(runs_dir) if has_weights(directory)]
        if not trained:
            raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or name a run folder')
        return read_run(trained[0])
    paths = [_named(Path(run_name)), runs_dir / run_name]
    for path in paths:
        if _is_weights(path):
            return read_run(_named(path.parent), weights=path)
    # Another directory of that name, such as a corpus, must not hide the run.
    directories = _with_card(run_name, runs_dir) or [path for path in paths if path.is_dir()]
    if not directories:
        raise UnknownNameError("run", run_name, names(runs_dir), listing='"txl runs" lists all')
    return read_run(directories[0])


def find_directory(run_name: str, runs_dir: Path) -> Path:
    """Find the directory of a run, which may be damaged, by its path or its name under `runs_dir`."""
    directories = _with_card(run_name, runs_dir)
    if not directories:
        raise UnknownNameError("run", run_name, names(runs_dir), listing='"txl runs" lists all')
    return directories[0]


def find_each(run_names: Sequence[str] | None, runs_dir: Path) -> list[Run]:
    """Find several runs, or files of their weights, by paths or names; without one, the most recent run."""
    runs = [find(run_name, runs_dir) for run_name in run_names or (None,)]
    check_distinct([run.subject for run in runs])
    return runs


def check_distinct(paths: Sequence[Path]) -> None:
    """Reject runs, or files of their weights, of which two are the same."""
    if len({path.resolve() for path in paths}) < len(paths):
        raise UsageError(f"{', '.join(map(str, paths))}: a run is named twice; name each run once")


def check_same_text(runs: Sequence[Run]) -> None:
    """Reject runs with different stores or vocabularies, before any is evaluated."""
    if len({(run.settings.corpus.store, run.vocab_fingerprint) for run in runs}) > 1:
        directories = " and ".join(str(run.directory) for run in runs)
        stores = ", ".join(run.settings.corpus.store for run in runs)
        raise UsageError(
            f"{directories} have different stores ({stores}) or vocabularies; leave one of them out, or compare two "
            "by the words of one text (txl eval RUN --text FILE --words A.tsv; txl runs difference A.tsv B.tsv)"
        )


def short_names(paths: Sequence[Path]) -> list[str]:
    """Return distinct labels of runs or of their weights: their names, or their paths if several have the same name."""
    names = [path.name for path in paths]
    labels = []
    for path in paths:
        is_distinct = names.count(path.name) == 1
        labels.append(path.name if is_distinct else str(path))
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
    """Return True if the argument is the directory of a run, a file of its weights, or a name of these."""
    paths = [Path(word), runs_dir / word]
    return bool(_with_card(word, runs_dir)) or any(
        _is_weights(path) and (path.parent / CARD).is_file() for path in paths
    )


def _is_weights(path: Path) -> bool:
    return path.suffix == ".safetensors" and path.is_file()


def _with_card(word: str, runs_dir: Path) -> list[Path]:
    return [path for path in (_named(Path(word)), runs_dir / word) if (path / CARD).is_file()]


def _named(directory: Path) -> Path:
    """Return a path that ends in the name of a directory, by which a run is locked, also for "." and ".."."""
    if directory.name in ("", ".."):
        return directory.resolve()
    return directory


def _all_directories(runs_dir: Path) -> Iterator[Path]:
    for card in runs_dir.glob(f"*/{CARD}"):
        if not card.parent.name.startswith("."):
            yield card.parent


def last_written(directory: Path) -> float:
    """Return the time when a run was last saved, in seconds since the epoch."""
    paths = (directory / CARD, directory / LAST)
    return max((path.stat().st_mtime for path in paths if path.exists()), default=0.0)


def read_run(directory: Path, *, weights: Path | None = None) -> Run:
    """Read a run directory; `weights` as in `Run`.

    Raises:
        MissingPackageError: another package registers a part of its model or its optimizer, and was not imported.
        RunError: it is not a run, or damaged.
    """
    path = directory / CARD
    if not path.is_file():
        next_step = "name a folder that txl train wrote"
        if (directory / "config.json").is_file():
            next_step = f'"txl eval hf:{directory}" evaluates a model of Transformers'
        raise RunError(f"{directory} is not a run: it has no {CARD}; {next_step}")
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
            corpus=card.corpus,
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
