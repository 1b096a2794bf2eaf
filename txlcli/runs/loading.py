"""Opens token stores by name, and runs with their weights."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self, Unpack

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.config.train_settings import Precision
from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.model.backends import Choices
from txlcli.core.model.base import LanguageModel
from txlcli.core.model.transformer_xl import TransformerXL
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RunError, StoreError, VocabularyError
from txlcli.paper import metrics
from txlcli.runs import log_file, run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import MAX_VOCABULARY, read_text


@dataclass(frozen=True, kw_only=True)
class OpenModel:
    """A model with its weights on a device, and what an evaluation needs to know about it."""

    subject: Path
    """Directory or file that it was read from, which results and messages show."""
    settings: Settings
    """Settings that apply where the options of an evaluation change nothing."""
    model: LanguageModel
    vocab: Vocab
    precision: Precision
    weights_title: str
    """Name of the weights, in a few words."""
    facts: dict[str, Any]
    """Facts about the model that the result of an evaluation reports: "run", "step" and others."""

    @property
    def name(self) -> str:
        """Short name, for titles."""
        return self.subject.name

    @property
    def metric(self) -> str:
        """Unit of displayed losses: "bpc" or "ppl"."""
        return metrics.metric_of(self.vocab.unit)

    def on(self, **choices: Unpack[Choices]) -> Self:
        """Return this with another view of the model, see `LanguageModel.on`."""
        return replace(self, model=self.model.on(**choices))

    def remarks(self, data: bytes) -> tuple[str, ...]:
        """Return what someone must know who compares the result of a user's text."""
        return ()

    @property
    def as_run(self) -> "OpenRun":
        """The run; callers reject a model of another program first."""
        assert isinstance(self, OpenRun), self.subject
        return self


@dataclass(frozen=True, kw_only=True)
class OpenRun(OpenModel):
    """A run with its weights on a device."""

    run: Run
    checkpoint: Checkpoint
    """Checkpoint of the weights, without the resume state."""

    @property
    def transformer(self) -> TransformerXL:
        """The model of a run with attention; callers reject a recurrent state first."""
        assert isinstance(self.model, TransformerXL), self.run.settings.model.arch
        return self.model

    def store(self, data_dir: Path) -> TokenStore:
        """Open the store that the run was trained on."""
        name = self.run.settings.corpus.store
        path = data_dir / f"{name}.h5"
        if "imported_from" in self.checkpoint.state and not path.exists():
            command = command_line("prepare", "CORPUS", vocab=self.run.directory / run_directory.VOCAB, name=name)
            raise StoreError(f'no token store at {path}; run "{command}" first')
        store = TokenStore.open(path)
        check_vocabulary(self.run, store)
        return store

    def trained_on_another(self, store: TokenStore) -> bool | None:
        """Return True if the weights were trained on another train split; None if one of the digests is unknown."""
        trained = self.checkpoint.state.get("train_sha256")
        current = store.digest("train")
        if trained is None or current is None:
            return None
        return bool(trained != current)


def check_vocabulary(run: Run, store: TokenStore) -> None:
    """Reject a store with another vocabulary than the run's, even if the sizes are equal."""
    if store.fingerprint != run.vocab_fingerprint:
        raise VocabularyError(
            f"{store.path} has another vocabulary than the one {run.directory} was trained with; "
            "give the `data_dir` it was trained on, or train again"
        )


def check_checkpoint(run: Run, saved: Checkpoint, path: Path) -> None:
    """Reject weights of another vocabulary or model than the run's, even if the sizes are equal."""
    run.check_own(path, [saved.state])
    models = [saved.state.get("model", {}), recipe.function_keys(run.settings.model)]
    names = recipe.differences([{"model": model} for model in models])
    if names:
        raise RunError(
            f"{path}: the weights belong to a model with other settings than {run.directory / run_directory.CARD} "
            f"has ({', '.join(sorted(names))}); restore the run's files from one copy"
        )
    if saved.state.get("vocab_fingerprint", run.vocab_fingerprint) != run.vocab_fingerprint:
        raise VocabularyError(
            f"{path}: the weights belong to another vocabulary than {run.directory}; restore its own checkpoint"
        )


def open_run(run: Run, *, device: str, precision: Precision | None) -> OpenRun:
    """Read the weights of a run to a device: those that the user named, or the best ones."""
    torch_device = pick_device(device)
    precision = precision or run.settings.train.precision
    check_precision(precision, torch_device)
    vocab = read_vocabulary(run)
    path = run.best_or_last
    saved = checkpoint.load(path, to_evaluate=True)
    check_checkpoint(run, saved, path)
    group = saved.weights_to_evaluate
    model = checkpoint.build_model(run.settings.model, run.vocab_size, saved, group=group)
    model = model.to(torch_device).eval().on(precision=precision)
    step = saved.state["step"]
    return OpenRun(
        subject=run.subject,
        settings=run.settings,
        model=model,
        vocab=vocab,
        precision=precision,
        weights_title=f"{path.name}, step {step}",
        facts={"run": str(run.directory), "step": step},
        run=run,
        checkpoint=saved,
    )


def read_vocabulary(run: Run) -> Vocab:
    """Read the run's vocabulary and check that it is the one of the weights."""
    path = run.directory / run_directory.VOCAB
    with log_file.reading(path):
        text = read_text(path, MAX_VOCABULARY)
    try:
        vocab = Vocab.from_json(text)
    except VocabularyError as error:
        raise VocabularyError(f"{path}: {error}; restore it from a copy") from error
    if vocab.fingerprint != run.vocab_fingerprint or vocab.size != run.vocab_size:
        raise VocabularyError(f"{path}: not the vocabulary of the weights; restore it from a copy")
    return vocab
