"""Makes a run of weights that another system trained."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import CorpusSettings, Settings, TrainSettings
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
from txlcli.workflows.exchange.options import ImportOptions, check_options, run_name
from txlcli.workflows.workspace import Workspace

SYSTEMS = {
    "hugging_face": "Hugging Face TransfoXL",
    "pytorch": "the released PyTorch code",
    "tf": "the released TF code",
}


def import_run(options: ImportOptions, workspace: Workspace) -> dict[str, Any]:
    """Make a run of weights that another system trained, and return what was imported.

    Raises:
        RunError: the weights are missing, damaged, or of another model; the run's directory is taken.
        UsageError: an option is wrong or missing.
        VocabularyError: no vocabulary, or not the one of the weights.
    """
    source, data_dir = options.source, workspace.data_dir
    check_options(options)
    directory = workspace.runs_dir / (options.name or run_name(source))
    run_directory.check_free(directory, force=options.force, instead="choose another --name")
    path = huggingface.file_of_weights(source) if source.is_dir() else source
    settings = _settings(options)
    imported = weights.plain_names(weights.read(path), path)
    system = weights.system_of(imported, path)
    _check_attention(system, imported, path)
    vocab, token_store = _vocabulary(options, settings, workspace)
    if source.is_dir():
        config = source / huggingface.CONFIG
        _check_vocabulary(huggingface.vocab_size(huggingface.read_config(source), config), vocab.size, config)
    store = token_store.path.stem if token_store else _free_store(directory.name, data_dir)
    table = recipe.to_table(settings)
    settings = recipe.resolve({**table, "corpus": {**table["corpus"], "store": store}}, where="--store")
    tensors = _converted(system, imported, settings, vocab.size, path)
    run = Run(
        directory=directory,
        recipe_name=recipe.read_text(options.recipe_source)[0] if options.recipe_source else directory.name,
        settings=settings,
        vocab_fingerprint=vocab.fingerprint,
        vocab_size=vocab.size,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        metric=metrics.metric_of(vocab.tokenizer),
    )
    _write(run, vocab, tensors, path, force=options.force)
    return _result(run, vocab, system, source, token_store, data_dir)


def _check_attention(system: System, imported: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights of the released PyTorch code without the projection of distances, which only type 0 has."""
    if system == "pytorch" and not any(name.endswith("dec_attn.r_net.weight") for name in imported):
        raise RunError(
            f"{path}: attention type 1, 2 or 3 of the released code, other functions than the encodings of txl; "
            "only type 0 (Transformer-XL) can be imported"
        )


def _settings(options: ImportOptions) -> Settings:
    """Return the settings: the model from a directory's configuration and the rest from the recipe, or all from it."""
    source, recipe_source = options.source, options.recipe_source
    if not source.is_dir():
        assert recipe_source is not None  # check_options
        return recipe.load(recipe_source, options.changes)
    config, where = huggingface.read_config(source), source / huggingface.CONFIG
    if recipe_source is not None:
        table: dict[str, Any] = recipe.to_table(recipe.load(recipe_source))
    else:
        evaluation = huggingface.eval_settings(config, where)
        plain = Settings(
            corpus=CorpusSettings(store=run_name(source)),
            model=huggingface.model_settings(config, where),
            # How the model was trained is unknown. Only the lengths matter: they give the distances that it knows.
            train=TrainSettings(seg_len=evaluation.seg_len, mem_len=evaluation.mem_len, batch_size=1, max_steps=1),
            eval=evaluation,
        )
        table = recipe.to_table(plain)
    model = recipe.to_keys(huggingface.model_settings(config, where))
    return recipe.resolve(recipe.override({**table, "model": model}, options.changes), where=str(where))


def _vocabulary(options: ImportOptions, settings: Settings, workspace: Workspace) -> tuple[Vocab, TokenStore | None]:
    """Return the vocabulary of the weights, and a store that has it; None if there is no such store."""
    source = options.source
    path = options.vocab or (vocabularies.find(source) if source.is_dir() else None)
    named = workspace.open_store(options.store) if options.store else None
    if path is not None:
        vocab = vocabularies.read(path)
        if named is not None and named.fingerprint != vocab.fingerprint:
            raise VocabularyError(f"{named.path} has another vocabulary than {path}; leave out --store or --vocab")
        return vocab, named or _store_with(vocab, settings.corpus.store, workspace.data_dir)
    if named is None:
        try:
            named = workspace.open_store(settings.corpus.store)
        except StoreError as error:
            raise VocabularyError(
                f"{source}: the weights come without a vocabulary; give --vocab FILE, or --store with the token "
                "store of their corpus"
            ) from error
    return named.vocab, named


def _store_with(vocab: Vocab, preferred: str, data_dir: Path) -> TokenStore | None:
    """Return the store with exactly this vocabulary; among several, the one of the preferred name.

    Raises:
        UsageError: several have it, none of them of that name.
    """
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
            "name the one with the text of the weights with --store"
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


def _write(run: Run, vocab: Vocab, tensors: dict[str, Tensor], source: Path, *, force: bool) -> None:
    state = {
        "recipe": run.recipe_name,
        "model": recipe.function_keys(run.settings.model),
        "vocab_fingerprint": run.vocab_fingerprint,
        "step": 0,
        "imported_from": source.name,
    }
    with run_directory.locked(run.directory):
        run_directory.create(run, vocab.to_json(), force=force)
        try:
            checkpoint.save(run.directory / run_directory.BEST, Checkpoint(checkpoint.grouped("model", tensors), state))
        except BaseException:
            run_directory.restore_replaced(run)
            raise
        run_directory.delete_replaced(run)


def _result(
    run: Run, vocab: Vocab, system: System, source: Path, token_store: TokenStore | None, data_dir: Path
) -> dict[str, Any]:
    store = run.settings.corpus.store
    boundary, unknown = (None if i is None else vocab.symbol(i) for i in (vocab.boundary, vocab.unknown))
    prepare = None
    if token_store is None:
        words = ["prepare", "CORPUS", "--vocab", str(run.directory / run_directory.VOCAB), "--name", store]
        prepare = command_line(*words, data_dir=data_dir)
    return {
        "run": str(run.directory),
        "source": str(source),
        "system": SYSTEMS[system],
        "parameters": run.parameters,
        "vocab_size": run.vocab_size,
        "store": str(token_store.path) if token_store else None,
        "prepare": prepare,
        "boundary": boundary,
        "unknown": unknown,
        "norm": getattr(run.settings.model, "norm", None),
        "cutoffs": list(run.settings.model.cutoffs),
        "settings_from": "its configuration" if source.is_dir() else f"the recipe {run.recipe_name}",
        "next": prepare or command_line("eval", str(run.directory), data_dir=data_dir),
    }
