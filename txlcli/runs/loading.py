"""Opens what commands work on: stores by name, runs together with their weights."""

import shlex
from dataclasses import dataclass
from pathlib import Path

from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.model.base import LanguageModel
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import StoreError, VocabularyError
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run


def open_store(name: str, data_dir: Path) -> TokenStore:
    """The store of that name.

    Raises:
        StoreError: missing, with the command that prepares it; damaged or foreign.
    """
    return TokenStore.open(data_dir / f"{name}.h5")


@dataclass(frozen=True)
class OpenRun:
    """A run with its weights on a device."""

    run: Run
    model: LanguageModel
    vocab: Vocab
    checkpoint: Checkpoint
    """The file that the weights are from, without what only training needs."""
    precision: str

    def store(self, data_dir: Path) -> TokenStore:
        """The store that the run was trained on.

        Raises:
            StoreError: missing or damaged.
            VocabularyError: it was prepared with another vocabulary.
        """
        name = self.run.settings.corpus.store
        if "imported_from" in self.checkpoint.state and not (data_dir / f"{name}.h5").exists():
            words = shlex.join(["--vocab", str(self.run.folder / run_folder.VOCAB), "--name", name])
            raise StoreError(f'no token store at {data_dir / name}.h5; run "txl prepare CORPUS {words}" first')
        store = open_store(name, data_dir)
        check_vocabulary(self.run, store)
        return store

    def trained_on_another(self, store: TokenStore) -> bool | None:
        """Whether the store's train split is another than that of the weights; None where one does not say its own."""
        learned, held = self.checkpoint.state.get("train_sha256"), store.digest("train")
        return None if learned is None or held is None else bool(learned != held)


def check_vocabulary(run: Run, store: TokenStore) -> None:
    """Refuse a store whose vocabulary is not the run's, even where the sizes agree."""
    if store.fingerprint != run.vocab_fingerprint:
        raise VocabularyError(
            f"{store.path} has another vocabulary than the one {run.folder} was trained with; "
            "give the --data-dir it was trained on, or train again"
        )


def check_checkpoint(run: Run, saved: Checkpoint, path: Path) -> None:
    """Refuse weights that were trained on another vocabulary than the run's, even where the sizes agree."""
    if saved.state.get("vocab_fingerprint", run.vocab_fingerprint) != run.vocab_fingerprint:
        raise VocabularyError(
            f"{path}: the weights belong to another vocabulary than {run.folder}; put its own checkpoint back"
        )


def open_run(run_name: str | None, runs_dir: Path, *, device: str, precision: str | None) -> OpenRun:
    """A run by folder or name, or the newest, with its best weights on the device.

    Raises:
        RunError, UnknownNameError, VocabularyError: see `run_folder.find`, `checkpoint.load`.
        UsageError: device or precision cannot be had.
    """
    run = run_folder.find(run_name, runs_dir)
    there = pick_device(device)
    precision = precision or run.settings.train.precision
    check_precision(precision, there)
    vocab = _vocabulary(run)
    path = run.best_or_last
    saved = checkpoint.load(path, to_evaluate=True)
    check_checkpoint(run, saved, path)
    group = saved.weights_to_evaluate
    model = checkpoint.build_model(run.settings.model, run.vocab_size, saved, path, group=group)
    return OpenRun(run, model.to(there).eval(), vocab, saved, precision)


def _vocabulary(run: Run) -> Vocab:
    """The run's own vocabulary, checked."""
    path = run.folder / run_folder.VOCAB
    try:
        vocab = Vocab.from_json(run.vocab_text())
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}; restore it from a copy") from error
    if vocab.fingerprint != run.vocab_fingerprint:
        raise VocabularyError(f"{path}: not the vocabulary that the weights belong to; restore it from a copy")
    return vocab
