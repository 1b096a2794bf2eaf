"""Reads the text of a training run from its token store."""

from txlcli.config.settings import Settings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.reading.documents import document_spans
from txlcli.core.reading.scoring import scored_stream
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import ValidationText
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Ids
from txlcli.errors import RecipeError, TrainingError
from txlcli.workflows.reporter import Reporter


def read_splits(
    settings: Settings, store: TokenStore, reporter: Reporter
) -> tuple[TrainingSegments, ValidationText | None]:
    """Read the segments of the train split, and the valid split; None for a store without one."""
    train = settings.train
    starts, shuffles = _train_starts(settings, store)
    segments = TrainingSegments(store.ids("train"), train, starts, shuffles=shuffles)
    if segments.lane_len <= train.seg_len:
        reporter.say(
            f"each of the {train.batch_size} parallel parts of the text has {segments.lane_len:,} tokens, no more than "
            "a segment: every step is an epoch and no memory is used; lower train.batch_size or train.seg_len"
        )
    if "valid" not in store.splits:
        _check_without_valid(train, store)
        reporter.say(f"{store.path} has no valid split: training without validation")
        return segments, None
    inputs, targets = scored_stream(store.ids("valid"), store.vocab.boundary, train.valid_tokens)
    if not len(targets):
        raise TrainingError(f"{store.path}: the valid split has no token to predict; prepare a longer text")
    spans: list[tuple[int, int]] = []
    if train.reset_at_documents:
        documents = _starts(store, "valid", "documents", "train.reset_at_documents")
        spans = document_spans(documents, store.vocab.boundary, len(targets))
    return segments, ValidationText(inputs, targets, spans)


def _train_starts(settings: Settings, store: TokenStore) -> tuple[Ids | None, bool]:
    """Return where the sentences or documents of the train split start, if the recipe needs it, and if it shuffles."""
    if settings.corpus.shuffle_sentences:
        return _starts(store, "train", "sentences", "corpus.shuffle_sentences"), True
    if settings.corpus.shuffle_documents:
        return _starts(store, "train", "documents", "corpus.shuffle_documents"), True
    if settings.train.reset_at_documents:
        return _starts(store, "train", "documents", "train.reset_at_documents"), False
    return None, False


def _starts(store: TokenStore, split: str, unit: str, setting: str) -> Ids:
    """Return where the units of a split start, which a setting needs."""
    starts = store.sentence_starts(split)
    if starts is None:
        message = f"{setting}: {store.path} does not record where {unit} start; set it to false"
        if unit == "documents":
            message += ", or prepare the store again with `documents`"
        raise RecipeError(message, setting=setting)
    return starts


def _check_without_valid(train: TrainSettings, store: TokenStore) -> None:
    """Reject settings that need a validation split."""
    for key, value in {"schedule": "plateau", "average": "asgd"}.items():
        if getattr(train, key) == value:
            raise RecipeError(
                f'train.{key} = "{value}" needs a valid split, and {store.path} has none; prepare a text with one, or '
                f"set another train.{key}",
                setting=f"train.{key}",
            )
    if train.stop_after is not None:
        raise RecipeError(
            f"train.stop_after = {train.stop_after} needs a valid split, and {store.path} has none; prepare a text "
            'with one, or set train.stop_after to "none"',
            setting="train.stop_after",
        )
