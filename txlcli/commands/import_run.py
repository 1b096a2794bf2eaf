"""`txl import`: make a run of weights that another system trained."""

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import PLAIN_NAME, CorpusSettings, Settings, TrainSettings
from txlcli.errors import RecipeError, RunError, StoreError, UsageError, VocabularyError
from txlcli.options import DATA_DIR, RUNS_DIR, DataDir, Force, Json, Overrides, RunsDir
from txlcli.paper import metrics
from txlcli.runs import run_folder
from txlcli.runs.run_folder import Run

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from txlcli.data.token_store import TokenStore
    from txlcli.data.vocabulary import Vocab
    from txlcli.exchange.weights import System

SYSTEMS = {
    "hugging_face": "Hugging Face TransfoXL",
    "pytorch": "the released PyTorch code",
    "tf": "the released TF code",
}


def import_run(
    source: Annotated[
        Path, typer.Argument(metavar="FOLDER|FILE", help="A Hugging Face folder, a state dict, or a dump of variables.")
    ],
    recipe_source: Annotated[
        str | None, typer.Option("--recipe", metavar="RECIPE", help="What files of weights alone do not say.")
    ] = None,
    vocab: Annotated[
        Path | None, typer.Option("--vocab", metavar="FILE", help="The vocabulary that the weights belong to.")
    ] = None,
    store: Annotated[
        str | None,
        typer.Option("--store", help="Token store with that vocabulary; found by it where one alone has it."),
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; the source's by default.")] = None,
    overrides: Overrides = None,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Make a run of released or Hugging Face weights.

    eval, speed and generate then work on it as on any other. A Hugging Face folder says everything itself; a state dict
    of the released PyTorch code and the variables of a TF checkpoint (as .npz or .safetensors) need --recipe.

    Example: txl import transfo-xl-wt103/ --name hf-wt103
    """
    from txlcli.exchange import weights

    if not source.exists():
        raise RunError(f"no file or folder at {source}; give a Hugging Face folder or a file of weights")
    if (source / run_folder.CARD).is_file():
        raise RunError(f'{source} is a run already; evaluate it with "{shlex.join(["txl", "eval", str(source)])}"')
    if name is not None and not re.fullmatch(PLAIN_NAME, name):
        raise UsageError(f'--name "{name}" is no plain name; use letters, digits, ".", "-" and "_"')
    if any(change.partition("=")[0].strip() == "corpus.store" for change in overrides or []):
        raise UsageError("--set corpus.store: name the store with --store, or leave it to the vocabulary")
    folder = runs_dir / (name or _plain(source))
    run_folder.check_free(folder, force=force, instead="choose another --name")
    path = weights.in_folder(source) if source.is_dir() else source
    settings = _settings(source, recipe_source, overrides or [])
    theirs = weights.plain_names(weights.read(path))
    system = weights.system_of(theirs, path)
    words, token_store = _vocabulary(source, vocab, store, settings, data_dir)
    if source.is_dir():
        _check_vocabulary(_configured_size(source), words.size, source / "config.json")
    settings = _with_store(settings, token_store.path.stem if token_store else _free_store(folder.name, data_dir))
    tensors = _converted(system, theirs, settings, words.size, path)
    run = Run(
        folder=folder,
        recipe_name=recipe.read_text(recipe_source)[0] if recipe_source else folder.name,
        settings=settings,
        vocab_fingerprint=words.fingerprint,
        vocab_size=words.size,
        parameters=sum(tensor.numel() for tensor in tensors.values()),
        metric=metrics.metric_of(words.kind),
    )
    _write(run, words, tensors, path, force=force)
    result = _as_result(run, words, system, source, token_store, data_dir)
    if json:
        console.show_json(result)
    else:
        _show(run, result)


def _plain(source: Path) -> str:
    """A name for the run from the name of what it is made of."""
    path = source.resolve()
    return re.sub(r"[^\w.+-]+", "-", path.stem if path.is_file() else path.name).strip("+-.")[:100] or "imported"


def _settings(source: Path, recipe_source: str | None, overrides: list[str]) -> Settings:
    """The model as a Hugging Face folder has it, the rest from the recipe; all of it from the recipe for a file."""
    from txlcli.exchange import huggingface

    if not source.is_dir():
        if recipe_source is None:
            raise UsageError(
                f"{source}: a file of weights does not say how many heads, which cutoffs or which corpus; "
                "name its recipe, e.g. --recipe wt103-large-tf"
            )
        return recipe.load(recipe_source, overrides)
    config, where = huggingface.read_config(source), source / huggingface.CONFIG
    table: dict[str, Any] = {}
    if recipe_source is not None:
        table = recipe.to_table(recipe.load(recipe_source))
    else:
        reading = huggingface.eval_settings(config, where)
        plain = Settings(
            corpus=CorpusSettings(store=_plain(source)),
            model=huggingface.model_settings(config, where),
            # How it was trained is not known; only the lengths matter, for the distances that it knows.
            train=TrainSettings(seg_len=reading.seg_len, mem_len=reading.mem_len, batch_size=1, max_steps=1),
            eval=reading,
        )
        table = recipe.to_table(plain)
    described = recipe.to_keys(huggingface.model_settings(config, where))
    return recipe.resolve(recipe.override({**table, "model": described}, overrides), where=str(where))


def _vocabulary(
    source: Path, vocab: Path | None, store: str | None, settings: Settings, data_dir: Path
) -> tuple["Vocab", "TokenStore | None"]:
    """The weights' vocabulary, and a store that has it where there is one."""
    from txlcli.exchange import vocabularies
    from txlcli.runs.loading import open_store

    path = vocab or (vocabularies.find(source) if source.is_dir() else None)
    named = open_store(store, data_dir) if store else None
    if path is not None:
        words = vocabularies.read(path)
        if named is not None and named.fingerprint != words.fingerprint:
            raise VocabularyError(f"{named.path} has another vocabulary than {path}; leave out --store or --vocab")
        return words, named or _store_with(words, settings.corpus.store, data_dir)
    if named is None:
        try:
            named = open_store(settings.corpus.store, data_dir)
        except StoreError as error:
            raise VocabularyError(
                f"{source}: the weights come without a vocabulary; give --vocab FILE, or --store with the token "
                "store of their corpus"
            ) from error
    return named.vocab, named


def _store_with(words: "Vocab", wished: str, data_dir: Path) -> "TokenStore | None":
    """The store in the data folder that has this very vocabulary; of several the one of the wished name.

    Raises:
        UsageError: several have it, none of them of that name.
    """
    from txlcli.data.token_store import TokenStore, stores_in

    stores = {}
    for path in stores_in(data_dir):
        try:
            store = TokenStore.open(path)
        except StoreError:
            continue  # a damaged store is no reason not to import
        if store.fingerprint == words.fingerprint:
            stores[path.stem] = store
    if len(stores) > 1 and wished not in stores:
        raise UsageError(
            f"{data_dir}: {len(stores)} token stores have this vocabulary ({', '.join(stores)}); "
            "name the one whose text the weights belong to with --store"
        )
    return stores.get(wished) or next(iter(stores.values()), None)


def _free_store(name: str, data_dir: Path) -> str:
    """A name for a store with the imported vocabulary that takes no other store's place."""
    free, number = name, 2
    while (data_dir / f"{free}.h5").exists():
        free, number = f"{name}-{number}", number + 1
    return free


def _with_store(settings: Settings, store: str) -> Settings:
    return recipe.resolve(
        {**recipe.to_table(settings), "corpus": {**recipe.to_table(settings)["corpus"], "store": store}},
        where="--store",
    )


def _converted(
    system: "System", theirs: "Mapping[str, Tensor]", settings: Settings, vocab_size: int, path: Path
) -> "dict[str, Tensor]":
    from txlcli.exchange import conversion

    model = settings.model
    if not isinstance(model, TransformerSettings) or not model.is_transformer_xl:
        raise RecipeError(f"{path}: weights of Transformer-XL go with its own recipes only; leave model.position alone")
    try:
        shapes = conversion.our_shapes(model, vocab_size)
        layout = (
            conversion.tf_layout(model, vocab_size)
            if system == "tf"
            else conversion.pytorch_layout(model, vocab_size, hugging_face=system == "hugging_face")
        )
    except RecipeError as error:
        raise RecipeError(f"{path}: {error}") from error
    _check_vocabulary(layout.vocab_size_of(theirs), vocab_size, path)
    return layout.read(theirs, shapes, str(path))


def _configured_size(source: Path) -> int:
    from txlcli.exchange import huggingface

    return huggingface.vocab_size(huggingface.read_config(source), source / huggingface.CONFIG)


def _check_vocabulary(held: int | None, vocab_size: int, path: Path) -> None:
    if held is not None and held != vocab_size:
        raise VocabularyError(
            f"{path}: the weights know {held:,} ids, the vocabulary has {vocab_size:,}; "
            "give the one that they were trained with"
        )


def _write(run: Run, words: "Vocab", tensors: "dict[str, Tensor]", source: Path, *, force: bool) -> None:
    from txlcli.core.training import checkpoint
    from txlcli.core.training.checkpoint import Checkpoint

    state = {
        "recipe": run.recipe_name,
        "vocab_fingerprint": run.vocab_fingerprint,
        "step": 0,
        "imported_from": source.name,
    }
    with run_folder.locked(run.folder):
        run_folder.create(run, words.to_json(), force=force)
        try:
            checkpoint.save(run.folder / run_folder.BEST, Checkpoint(checkpoint.grouped("model", tensors), state))
        except BaseException:
            run_folder.restore_replaced(run)
            raise
        run_folder.delete_replaced(run)


def _as_result(
    run: Run, words: "Vocab", system: "System", source: Path, token_store: "TokenStore | None", data_dir: Path
) -> dict[str, Any]:
    """The object that --json prints, and that the table is made of."""
    store = run.settings.corpus.store
    ids = {"boundary": words.boundary, "unknown": words.unknown}
    symbols = {what: words.symbol(number) for what, number in ids.items() if number is not None}
    where = [] if data_dir == DATA_DIR else ["--data-dir", str(data_dir)]
    prepare = None
    if token_store is None:
        prepare = shlex.join(
            ["txl", "prepare", "CORPUS", "--vocab", str(run.folder / run_folder.VOCAB), "--name", store, *where]
        )
    return {
        "run": str(run.folder),
        "source": str(source),
        "system": SYSTEMS[system],
        "parameters": run.parameters,
        "vocab_size": run.vocab_size,
        "store": str(token_store.path) if token_store else None,
        "prepare": prepare,
        "boundary": symbols.get("boundary"),
        "unknown": symbols.get("unknown"),
        "next": prepare or shlex.join(["txl", "eval", str(run.folder), *where]),
    }


def _show(run: Run, result: dict[str, Any]) -> None:
    rows = [
        ["weights of", f"{result['system']} ({result['source']})"],
        ["vocabulary", f"{result['vocab_size']:,} symbols"],
        ["line end, unknown", ", ".join(result[key] or "none" for key in ("boundary", "unknown"))],
        ["token store", result["store"] or "none with this vocabulary yet"],
        ["next", result["next"]],
    ]
    console.show_table(f"{result['run']}: {run.parameters:,} parameters", ("", ""), rows)
