"""Resolves what the user asks to train before PyTorch is imported: a recipe, one for a store, or that of a run."""

import dataclasses
from collections.abc import Callable
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import Settings
from txlcli.errors import MAX_LISTED, RecipeError, UnknownNameError, UsageError, listed
from txlcli.runs import run_directory
from txlcli.workflows.options import TrainOptions
from txlcli.workflows.training import trackers

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""
FIXED_KEYS = (
    *("batch_size", "seg_len", "mem_len", "reread_len", "seg_len_jitter", "roll_lanes"),
    *("optimizer", "momentum", "average", "seed"),
    *("valid_seg_len", "valid_tokens"),  # validation losses at other values are not comparable
)
"""Settings of train that a resumed run keeps: weights, memory and position in the text depend on no others."""


def read_settings(source: str | None, options: TrainOptions, runs_dir: Path) -> tuple[str, Settings]:
    """Return the name and the settings of a recipe, or without one of the run that `resume` or `begin_from` names.

    A run with them can be trained here up to the last step.
    """
    if source is not None and options.resume is None:
        name, text = recipe.read_text(source)
        settings = recipe.resolve_text(text, source, options.changes)
    else:
        name, settings = _settings_of_run(options, runs_dir)
    model = settings.model
    if isinstance(model, TransformerSettings) and model.auxiliary_losses and settings.train.mem_len:
        reason = "model.auxiliary_losses belong to the vanilla model, which has no memory"
        raise RecipeError(f"{source or name}: {reason}; `overrides` train.mem_len=0")
    trackers.check_packages(settings.log)
    options.check_steps(settings.train.max_steps)
    return name, settings


def _settings_of_run(options: TrainOptions, runs_dir: Path) -> tuple[str, Settings]:
    if (name := options.resume or options.begin_from) is None:
        raise UsageError("nothing to train; name a recipe, such as stdlib, or a run with `resume` or `begin_from`")
    for change in options.changes if options.resume else ():
        section, _, key = change.partition("=")[0].strip().partition(".")
        if section in ("corpus", "model") or (section == "train" and key in FIXED_KEYS):
            raise RecipeError(f"`overrides` {change}: a resumed run keeps its {section}.{key}; start a new run instead")
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

    packaged = recipe.packaged_names()
    if source is None or Path(source).is_file() or source.removesuffix(".toml") in packaged:
        return source, options
    store = data_dir / f"{source}.h5"
    if store.is_file():
        unit = TokenStore.open(store).unit
        based_on = None if options.begin_from else RECIPES[unit]
        settings = f'the recipe "{based_on}"' if based_on else f"with the settings of {options.begin_from}"
        say(f"{source} is a token store (unit {unit}): training {settings} on it")
        name = options.name or next(run_directory.free_directories(runs_dir, source)).name
        overrides = (f"corpus.store={source}", *options.overrides)
        return based_on, dataclasses.replace(options, name=name, overrides=overrides)
    if Path(source).stem == source:  # neither a path nor a file's name
        stores = [path.stem for path in stores_in(data_dir)]
        listing = f"{recipe.LISTING} recipes; stores in {data_dir}: {listed(stores[:MAX_LISTED])}"
        raise UnknownNameError("recipe or store", source, [*stores, *packaged], listing=listing)
    return source, options


def with_seeds(name: str, first: int, options: TrainOptions, seeds: int, runs_dir: Path) -> list[TrainOptions]:
    """Return the options of one run per seed, from the first seed of a recipe on; the name of each must be free."""
    if seeds == 1:
        return [options]
    runs = [
        dataclasses.replace(options, name=f"{options.name or name}-seed{seed}", seed=seed, caller_continues=True)
        for seed in range(first, first + seeds)
    ]
    for run in runs:
        run_directory.check_free(runs_dir / str(run.name), force=options.force)
    return runs
