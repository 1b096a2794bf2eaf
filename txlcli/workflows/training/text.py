"""Opens the text of a training run: its store, the segments of the train split, the valid split."""

from txlcli import corpora
from txlcli.config.settings import Settings
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import ValidSplit
from txlcli.data.token_store import TokenStore
from txlcli.errors import RecipeError, TrainingError
from txlcli.workflows.options import PrepareOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.workspace import Workspace


def open_or_prepare_store(settings: Settings, workspace: Workspace) -> TokenStore:
    """Open the store of a recipe; a corpus that every machine has is prepared if its store is missing."""
    name = settings.corpus.store
    corpus, path = corpora.CORPORA.get(name), workspace.store_path(name)
    if corpus is not None and corpus.home is not None and not path.exists():
        workspace.reporter.say(f"no token store at {path} yet; preparing it")
        return preparing.run(name, PrepareOptions(), workspace.data_dir, reporter=workspace.reporter).store
    preparing.clean(workspace.data_dir)
    return TokenStore.open(path)


def read_splits(
    settings: Settings, store: TokenStore, reporter: Reporter
) -> tuple[TrainingSegments, ValidSplit | None]:
    """Read the segments of the train split, and the valid split; None for a store without one."""
    segments = _read_segments(settings, store)
    if "valid" not in store.splits:
        for key, value in (("schedule", "plateau"), ("average", "asgd")):
            if getattr(settings.train, key) == value:
                raise RecipeError(
                    f'train.{key} = "{value}" needs a valid split, and {store.path} has none; prepare a text with one, '
                    f"or set another train.{key}"
                )
        reporter.say(f"{store.path} has no valid split: training without validation")
        return segments, None
    valid = ValidSplit.of(store.ids("valid"), store.vocab.boundary, settings.train.valid_tokens)
    if not len(valid.targets):
        raise TrainingError(f"{store.path}: the valid split has no token to predict; prepare a longer text")
    return segments, valid


def _read_segments(settings: Settings, store: TokenStore) -> TrainingSegments:
    """Read the segments of the train split."""
    starts = None
    if settings.corpus.shuffle_sentences:
        starts = store.sentence_starts("train")
        if starts is None:
            raise RecipeError(
                f"corpus.shuffle_sentences: {store.path} does not record where sentences start; set it to false"
            )
    return TrainingSegments(
        store.ids("train"),
        batch_size=settings.train.batch_size,
        seg_len=settings.train.seg_len,
        sentence_starts=starts,
        roll=settings.train.roll_lanes,
        seed=settings.train.seed,
    )
