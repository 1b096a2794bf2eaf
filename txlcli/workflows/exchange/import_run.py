"""Makes a run of weights that another system trained."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from txlcli.config import recipe
from txlcli.config.model_settings import ModelSettings, TransformerSettings
from txlcli.config.settings import Settings, plain_name
from txlcli.core.training import checkpoint
from txlcli.data.token_store import TokenStore
from txlcli.data.vocabulary import Vocab
from txlcli.errors import RecipeError, RunError, UsageError, VocabularyError
from txlcli.paper import metrics
from txlcli.runs import lifecycle, run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import check_regular
from txlcli.workflows.exchange import conversion, huggingface, vocabularies, weights
from txlcli.workflows.exchange.layouts import SYSTEMS
from txlcli.workflows.exchange.options import ImportOptions
from txlcli.workflows.workspace import Workspace


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
    notes: list[str]
    """How the run differs from the weights."""
    boundary: str | None
    """Symbol that ends a line."""
    unknown: str | None
    norm: str
    cutoffs: tuple[int, ...]
    settings_from: str
    next: str
    """The next command."""


def run(source: Path, options: ImportOptions, workspace: Workspace) -> ImportedRun:
    """Make a run of a Hugging Face directory or a file of weights."""
    settings = _settings(source, options)
    directory = workspace.runs_dir / (options.name or _name_of(source))
    lifecycle.check_free(directory, force=options.force)
    vocab, store = _vocabulary(source, options, settings, workspace)
    path = huggingface.file_of_weights(source) if source.is_dir() else source
    layout, tensors, padding = _read_weights(path, settings.model, vocab.size)
    store_name = store.path.stem if store else _free_store(directory.name, workspace)
    recipe_name = directory.name
    if options.recipe:
        recipe_name, _ = recipe.read_text(options.recipe)
    corpus = dataclasses.replace(settings.corpus, store=store_name)
    new_run = Run(
        directory=directory,
        recipe_name=recipe_name,
        settings=dataclasses.replace(settings, corpus=corpus),
        vocab_fingerprint=vocab.fingerprint,
        vocab_size=vocab.size,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        metric=metrics.metric_of(vocab.tokenizer),
        corpus=store.corpus if store else None,
    )
    _write(new_run, vocab, tensors, path, force=options.force)
    notes = []
    if padding:
        notes.append(f"the last {padding} ids of the weights pad the vocabulary and were dropped")
    prepare = None
    if store is None:
        vocab_file = directory / run_directory.VOCAB
        prepare = command_line("prepare", "CORPUS", vocab=vocab_file, name=store_name, data_dir=workspace.data_dir)
    return ImportedRun(
        run=str(directory),
        source=str(source),
        system=SYSTEMS[layout.system],
        parameters=new_run.parameters,
        vocab_size=vocab.size,
        store=str(store.path) if store else None,
        prepare=prepare,
        notes=notes,
        boundary=_symbol(vocab, vocab.boundary),
        unknown=_symbol(vocab, vocab.unknown),
        norm=layout.settings.norm,
        cutoffs=layout.settings.cutoffs,
        settings_from="its configuration" if source.is_dir() else f"the recipe {recipe_name}",
        next=prepare or command_line("eval", str(directory), data_dir=workspace.data_dir),
    )


def _read_weights(
    path: Path, model: ModelSettings, vocab_size: int
) -> tuple[conversion.Layout, dict[str, Tensor], int]:
    """Return the layout of a file of weights, the weights under our names, and the number of ids that were padding."""
    stored = weights.read(path)
    system = weights.system_of(stored, path)
    padding = weights.padding_of(stored, vocab_size, path)
    missing = conversion.missing_setting(model, system)
    if missing is not None:
        raise RecipeError(f"{path}: {missing}")
    assert isinstance(model, TransformerSettings)
    layout = conversion.Layout(system, model, vocab_size)
    return layout, layout.read(stored, str(path), padding), padding


def _symbol(vocab: Vocab, number: int | None) -> str | None:
    """Return a symbol of a vocabulary in printable form; None for none."""
    if number is None:
        return None
    return vocab.symbol(number)


def _name_of(source: Path) -> str:
    return plain_name(source.resolve(), otherwise="imported")


def _settings(source: Path, options: ImportOptions) -> Settings:
    """Return the settings: the model from a directory's configuration and the rest from the recipe, or all from it."""
    if not check_regular(source).exists():
        raise RunError(f"no file or folder at {source}; give a Hugging Face folder or a file of weights")
    if (source / run_directory.CARD).is_file():
        raise RunError(f'{source} is already a run; evaluate it with "{command_line("eval", str(source))}"')
    if not source.is_dir():
        if options.recipe is None:
            raise UsageError(
                f"{source}: a file of weights does not contain the number of heads, the cutoffs or the corpus; "
                "name its recipe, e.g. `recipe` wt103-large-tf"
            )
        return recipe.load(options.recipe, options.overrides)
    keys = huggingface.read_keys(source)
    if options.recipe is not None:
        table = recipe.to_table(recipe.load(options.recipe))
    else:
        # How the model was trained is unknown. Only the lengths matter: they give the distances that it knows.
        lengths = {name: keys["eval"][name] for name in ("seg_len", "mem_len")}
        table = {
            "corpus": {"store": _name_of(source)},
            "train": lengths | {"batch_size": 1, "max_steps": 1},
            "eval": keys["eval"],
        }
    table["model"] = keys["model"]
    return recipe.resolve(table, str(source / huggingface.CONFIG), options.overrides)


def _vocabulary(
    source: Path, options: ImportOptions, settings: Settings, workspace: Workspace
) -> tuple[Vocab, TokenStore | None]:
    """Return the vocabulary of the weights, and the token store with it; None if there is no such store."""
    path = options.vocab or vocabularies.find(source)
    name = options.store or settings.corpus.store
    store: TokenStore | None = None
    if options.store or workspace.store_path(name).exists():
        store = workspace.open_store(name)
    if path is None:
        if store is None:
            raise VocabularyError(
                f"{source}: the weights come without a vocabulary; give `vocab` FILE, or `store` with the token "
                "store of their corpus"
            )
        return store.vocab, store
    vocab = vocabularies.read(path)
    if store is not None and store.fingerprint != vocab.fingerprint:
        if options.store:
            raise VocabularyError(f"{store.path} has another vocabulary than {path}; leave out `store` or `vocab`")
        store = None
    return vocab, store


def _free_store(name: str, workspace: Workspace) -> str:
    """Return a name that no store in the data directory has."""
    free = name
    number = 1
    while workspace.store_path(free).exists():
        number += 1
        free = f"{name}-{number}"
    return free


def _write(new_run: Run, vocab: Vocab, tensors: dict[str, Tensor], source: Path, *, force: bool) -> None:
    state = {
        run_directory.RUN_ID: new_run.id,
        "recipe": new_run.recipe_name,
        "model": recipe.function_keys(new_run.settings.model),
        "vocab_fingerprint": new_run.vocab_fingerprint,
        "step": 0,
        "imported_from": source.name,
    }
    created = lifecycle.created(new_run, vocab.to_json(), force=force)
    with lifecycle.locked(new_run.directory), created:
        weights_only = checkpoint.Checkpoint(checkpoint.grouped("model", tensors), state)
        checkpoint.save(new_run.directory / run_directory.BEST, weights_only)
