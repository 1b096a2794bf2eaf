"""Resolves what the user asks to train before PyTorch is imported: a recipe, one for a store, or that of a run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import MAX_LISTED, RecipeError, UnknownNameError, UsageError, listed
from txlcli.runs import run_directory
from txlcli.workflows.options import TrainOptions

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""


def read_settings(source: str | None, options: TrainOptions, runs_dir: Path) -> tuple[str, Settings]:
    """Return the name and the settings of a recipe, or without one of the run that `resume` or `begin_from` names."""
    if source is not None:
        return recipe.read_text(source)[0], recipe.load(source, options.changes)
    if (name := options.resume or options.begin_from) is None:
        raise UsageError("nothing to train; name a recipe, such as stdlib, or a run with `resume` or `begin_from`")
    run = run_directory.find(name, runs_dir)
    settings = recipe.resolve(recipe.to_table(run.settings), str(run.directory), options.changes)
    if options.resume is None and settings.train.max_steps == 1:  # as an import without a recipe says
        raise RecipeError(
            f"{run.directory} does not tell how to train; name a recipe with the same model, or add `overrides` "
            "train.max_steps=N, and others such as train.batch_size"
        )
    return run.recipe_name, settings


def resolve(
    source: str | None,
    options: TrainOptions,
    data_dir: Path,
    runs_dir: Path,
    say: Callable[[str], None],
) -> tuple[str | None, TrainOptions]:
    """Return the recipe and the options; `source` may be the name of a token store.

    The recipe is None if the settings are those of the run that `begin_from` names.
    """
    from txlcli.data.token_store import TokenStore, stores_in

    if source is None:
        return None, options
    packaged = recipe.packaged_names()
    is_recipe = Path(source).is_file() or source.removesuffix(".toml") in packaged
    store_name = source if not is_recipe and (data_dir / f"{source}.h5").is_file() else None
    if not is_recipe and store_name is None and Path(source).stem == source:  # neither a path nor a file's name
        stores = [path.stem for path in stores_in(data_dir)]
        listing = f"{recipe.LISTING} recipes; stores in {data_dir}: {listed(stores[:MAX_LISTED])}"
        raise UnknownNameError("recipe or store", source, [*stores, *packaged], listing=listing)
    if store_name is not None:
        unit = TokenStore.open(data_dir / f"{store_name}.h5").unit
        source = None if options.begin_from else RECIPES[unit]
        name = options.name or next(run_directory.free_directories(runs_dir, store_name)).name
        options = dataclasses.replace(options, name=name, overrides=(f"corpus.store={store_name}", *options.overrides))
        say(
            f"{store_name} is a token store (unit {unit}): training "
            + (f'the recipe "{source}" on it' if source else f"with the settings of {options.begin_from} on it")
        )
    return source, options


def with_seeds(source: str | None, options: TrainOptions, seeds: int, runs_dir: Path) -> list[TrainOptions]:
    """Return the options of one run per seed, from the seed of the recipe on; the name of each must be free."""
    if seeds == 1:
        return [options]
    recipe_name, settings = read_settings(source, options, runs_dir)
    name, first = options.name or recipe_name, settings.train.seed
    runs = [
        dataclasses.replace(options, name=f"{name}-seed{seed}", seed=seed, caller_continues=True)
        for seed in range(first, first + seeds)
    ]
    for run in runs:
        run_directory.check_free(runs_dir / str(run.name), force=options.force)
    return runs
