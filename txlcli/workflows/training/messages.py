"""What a training reads: its store, the lanes of the train split, the valid split."""

from pathlib import Path
from typing import TYPE_CHECKING

from txlcli import console
from txlcli.config.settings import Settings
from txlcli.errors import RecipeError, StoreError, TrainingError
from txlcli.runs.run_folder import Run

if TYPE_CHECKING:
    from txlcli.core.training.checkpoint import Checkpoint
    from txlcli.core.training.segments import TrainingSegments
    from txlcli.core.training.validation import ValidSplit
    from txlcli.data.token_store import TokenStore


def store_for(settings: Settings, data_dir: Path) -> "TokenStore":
    """The recipe's store; a corpus that every machine has is prepared on the way."""
    import corpora
    from txlcli.runs.loading import open_store
    from txlcli.workflows.preparation.preparing import prepare

    name = settings.corpus.store
    corpus = corpora.CORPORA.get(name)
    if corpus is not None and corpus.home is not None and not (data_dir / f"{name}.h5").exists():
        console.say(f"no token store at {data_dir / name}.h5 yet; preparing it")
        return prepare(name, data_dir, reporter=console.TerminalReporter())
    return open_store(name, data_dir)


def text_of(settings: Settings, store: "TokenStore") -> "tuple[TrainingSegments, ValidSplit | None]":
    """The training split in lanes and the validation split, None where the store has none."""
    from txlcli.core.training.segments import TrainingSegments, scored_stream
    from txlcli.core.training.validation import ValidSplit

    starts = None
    if settings.corpus.shuffle_sentences:
        starts = store.sentence_starts("train")
        if starts is None:
            raise RecipeError(
                f"corpus.shuffle_sentences: {store.path} does not know where sentences start; set it to false"
            )
    segments = TrainingSegments(
        store.ids("train"),
        batch_size=settings.train.batch_size,
        seg_len=settings.train.seg_len,
        sentence_starts=starts,
        seed=settings.train.seed,
    )
    if "valid" not in store.splits:
        for key, value in (("schedule", "plateau"), ("average", "asgd")):
            if getattr(settings.train, key) == value:
                raise RecipeError(
                    f'train.{key} = "{value}" needs a valid split, and {store.path} has none; prepare a text with one, '
                    f"or set another train.{key}"
                )
        console.say(f"{store.path} has no valid split: training without validation")
        return segments, None
    inputs, targets = scored_stream(store.ids("valid"), store.vocab.boundary, settings.train.valid_tokens)
    if not len(targets):
        raise TrainingError(f"{store.path}: the valid split has no token to predict; prepare a longer text")
    return segments, ValidSplit(inputs, targets)


def check_same_text(run: Run, saved: "Checkpoint", store: "TokenStore") -> None:
    """Refuse another text than the one whose place, losses and memory the checkpoint holds."""
    read, valid = store.digest("train"), store.digest("valid")
    if saved.state.get("train_sha256", read) != read:
        raise StoreError(
            f"{store.path} holds another train split than the one {run.folder} has read; prepare that text again, or "
            "start a new run"
        )
    was_validated = saved.state.get("best_nats") is not None
    if was_validated and saved.state.get("valid_sha256", valid) != valid:
        raise StoreError(
            f"{store.path} does not hold the valid split that {run.folder} was validated on, and losses of another are "
            "not comparable; prepare that text again, or start a new run"
        )
