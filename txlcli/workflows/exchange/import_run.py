"""Makes a run of weights that another system trained."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import Settings
from txlcli.core.training import checkpoint
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.data.token_store import TokenStore, stores_in
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RecipeError, RunError, StoreError, UsageError, VocabularyError
from txlcli.exchange import conversion, huggingface, vocabularies, weights
from txlcli.exchange.weights import System
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import command_line
from txlcli.workflows.exchange.import_settings import name_of, settings_of
from txlcli.workflows.options import ImportOptions
from txlcli.workflows.workspace import Workspace

SYSTEMS = {
    "hugging_face": "Hugging Face TransfoXL",
    "pytorch": "the released PyTorch code",
    "tf": "the released TF code",
}


@dataclass(frozen=True, kw_only=True)
class ImportedRun:
    """A run that was made of weights."""

    run: str
    source: str
    system: str
    parameters: int
    vocab_size: int
    store: str | None
    """Token store with the vocabulary; None if there is none yet."""
    prepare: str | None
    """The command that prepares that store; None if there is one."""
    boundary: str | None
    """Symbol that ends a line."""
    unknown: str | None
    norm: str | None
    cutoffs: tuple[int, ...]
    settings_from: str
    next: str
    """The next command."""

    def to_json(self) -> dict[str, Any]:
        """Return the object that `txl import --json` prints."""
        return dataclasses.asdict(self)


def run(source: Path, options: ImportOptions, workspace: Workspace) -> ImportedRun:
    """Make a run of a Hugging Face directory or a file of weights."""
    settings = settings_of(source, options)
    directory = workspace.runs_dir / (options.name or name_of(source))
    run_directory.check_free(directory, force=options.force, instead="choose another `name`")
    path = huggingface.file_of_weights(source) if source.is_dir() else source
    imported = weights.plain_names(weights.read(path), path)
    system = weights.system_of(imported, path)
    if system == "pytorch" and not any(name.endswith("dec_attn.r_net.weight") for name in imported):
        raise RunError(
            f"{path}: attention type 1, 2 or 3 of the released code, other functions than the encodings of txl; "
            "only type 0 (Transformer-XL) can be imported"
        )
    vocab, token_store = _vocabulary(source, options, settings, workspace)
    if source.is_dir():
        config = source / huggingface.CONFIG
        _check_vocabulary(huggingface.vocab_size(huggingface.read_config(source), config), vocab.size, config)
    store = token_store.path.stem if token_store else _free_store(directory.name, workspace.data_dir)
    settings = dataclasses.replace(settings, corpus=dataclasses.replace(settings.corpus, store=store))
    tensors = _converted(system, imported, settings, vocab.size, path)
    made = Run(
        directory=directory,
        recipe_name=recipe.read_text(options.recipe)[0] if options.recipe else directory.name,
        settings=settings,
        vocab_fingerprint=vocab.fingerprint,
        vocab_size=vocab.size,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        metric=metrics.metric_of(vocab.tokenizer),
    )
    _write(made, vocab, tensors, path, force=options.force)
    return _result(made, vocab, system, source, token_store, workspace.data_dir)


def _vocabulary(
    source: Path, options: ImportOptions, settings: Settings, workspace: Workspace
) -> tuple[Vocab, TokenStore | None]:
    """Return the vocabulary of the weights, and a store that has it; None if there is no such store."""
    path = options.vocab or (vocabularies.find(source) if source.is_dir() else None)
    named = workspace.open_store(options.store) if options.store else None
    if path is not None:
        vocab = vocabularies.read(path)
        if named is not None and named.fingerprint != vocab.fingerprint:
            raise VocabularyError(f"{named.path} has another vocabulary than {path}; leave out `store` or `vocab`")
        return vocab, named or _store_with(vocab, settings.corpus.store, workspace.data_dir)
    if named is None:
        try:
            named = workspace.open_store(settings.corpus.store)
        except StoreError as error:
            raise VocabularyError(
                f"{source}: the weights come without a vocabulary; give `vocab` FILE, or `store` with the token "
                "store of their corpus"
            ) from error
    return named.vocab, named


def _store_with(vocab: Vocab, preferred: str, data_dir: Path) -> TokenStore | None:
    """Return the store with exactly this vocabulary; among several, the one of the preferred name."""
    stores = {}
    for path in stores_in(data_dir):
        try:
            store = TokenStore.open(path)
        except (StoreError, UsageError):
            continue  # a damaged store does not prevent an import
        if store.fingerprint == vocab.fingerprint:
            stores[path.stem] = store
    if len(stores) > 1 and preferred not in stores:
        raise UsageError(
            f"{data_dir}: {len(stores)} token stores have this vocabulary ({', '.join(stores)}); "
            "name the one with the text of the weights with `store`"
        )
    return stores.get(preferred) or next(iter(stores.values()), None)


def _free_store(name: str, data_dir: Path) -> str:
    """Return a name that no store in the data directory has."""
    free, number = name, 2
    while (data_dir / f"{free}.h5").exists():
        free, number = f"{name}-{number}", number + 1
    return free


def _converted(
    system: System, imported: Mapping[str, Tensor], settings: Settings, vocab_size: int, path: Path
) -> dict[str, Tensor]:
    """Return the weights under txl's names and in its shapes."""
    model = settings.model
    if not isinstance(model, TransformerSettings) or not model.is_transformer_xl:
        raise RecipeError(
            f"{path}: Transformer-XL weights need a Transformer-XL recipe; do not change model.arch or model.position"
        )
    try:
        shapes = conversion.our_shapes(model, vocab_size)
        layout = (
            conversion.tf_layout(model, vocab_size)
            if system == "tf"
            else conversion.pytorch_layout(model, vocab_size, hugging_face=system == "hugging_face")
        )
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    _check_vocabulary(layout.vocab_size_of(imported), vocab_size, path)
    return layout.read(imported, shapes, str(path))


def _check_vocabulary(weights_size: int | None, vocab_size: int, path: Path) -> None:
    if weights_size is not None and weights_size != vocab_size:
        raise VocabularyError(
            f"{path}: the weights have {weights_size:,} ids and the vocabulary {vocab_size:,}; "
            "give the vocabulary that they were trained with"
        )


def _write(made: Run, vocab: Vocab, tensors: dict[str, Tensor], source: Path, *, force: bool) -> None:
    state = {
        "recipe": made.recipe_name,
        "model": recipe.function_keys(made.settings.model),
        "vocab_fingerprint": made.vocab_fingerprint,
        "step": 0,
        "imported_from": source.name,
    }
    with run_directory.locked(made.directory):
        run_directory.create(made, vocab.to_json(), force=force)
        try:
            checkpoint.save(
                made.directory / run_directory.BEST, Checkpoint(checkpoint.grouped("model", tensors), state)
            )
        except BaseException:
            run_directory.restore_replaced(made)
            raise
        run_directory.delete_replaced(made)


def _result(
    made: Run, vocab: Vocab, system: System, source: Path, token_store: TokenStore | None, data_dir: Path
) -> ImportedRun:
    boundary, unknown = (None if i is None else vocab.symbol(i) for i in (vocab.boundary, vocab.unknown))
    prepare = None
    if token_store is None:
        words = ["--vocab", str(made.directory / run_directory.VOCAB), "--name", made.settings.corpus.store]
        prepare = command_line("prepare", "CORPUS", *words, data_dir=data_dir)
    return ImportedRun(
        run=str(made.directory),
        source=str(source),
        system=SYSTEMS[system],
        parameters=made.parameters,
        vocab_size=made.vocab_size,
        store=str(token_store.path) if token_store else None,
        prepare=prepare,
        boundary=boundary,
        unknown=unknown,
        norm=getattr(made.settings.model, "norm", None),
        cutoffs=tuple(made.settings.model.cutoffs),
        settings_from="its configuration" if source.is_dir() else f"the recipe {made.recipe_name}",
        next=prepare or command_line("eval", str(made.directory), data_dir=data_dir),
    )
