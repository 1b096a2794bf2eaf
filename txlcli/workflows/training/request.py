"""Resolves what the user asks to train before PyTorch is imported: a recipe, one for a store, or that of a run."""

from dataclasses import dataclass, replace
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import MAX_LISTED, RecipeError, UnknownNameError, UsageError, listed
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.workflows.training import trackers
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.workspace import Workspace

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""
FIXED_KEYS = (
    *("train.batch_size", "train.seg_len", "train.seg_len_jitter", "train.mem_len", "train.reread_len"),
    "train.roll_lanes",
    *("train.optimizer", "train.momentum", "train.average", "train.seed"),
    *("train.valid_seg_len", "train.valid_tokens"),  # validation losses at other values are not comparable
)
"""Settings that a resumed run keeps, with those of text and model: weights, memory and position depend on them."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A training run that the user asks for, with its settings resolved."""

    recipe_name: str
    run_name: str
    """Name of a new run; -2, -3 and so on follow it where it is taken."""
    settings: Settings
    options: TrainOptions
    resumed: Run | None = None
    """The run to resume, as it was stopped; None for a new run."""


def read(source: str | None, options: TrainOptions, workspace: Workspace) -> Request:
    """Resolve a recipe, or the name of a token store; without one, the run that `resume` or `begin_from` names.

    A run with these settings can be trained here up to the last step.
    """
    run = run_name = None
    if source is not None and options.resume is not None:
        raise UsageError("`resume` continues a run with its own recipe; leave out the recipe")
    if source is not None and (unit := _unit_of_store(source, workspace.data_dir)):
        based_on = None if options.begin_from else RECIPES[unit]
        settings_of = f'the recipe "{based_on}"' if based_on else f"with the settings of {options.begin_from}"
        workspace.reporter.say(f"{source} is a token store (unit {unit}): training {settings_of} on it")
        run_name, options = source, replace(options, overrides=(f"corpus.store={source}", *options.overrides))
        source = based_on
    if source is None:
        run = _run_with_settings(options, workspace.runs_dir)
        name, before = run.recipe_name, recipe.to_table(run.settings)
        settings = recipe.resolve(before, str(run.directory), options.changes)
        for key in recipe.differences([before, recipe.to_table(settings)]):
            if options.resume and (key in FIXED_KEYS or key.startswith(("corpus.", "model."))):
                raise RecipeError(f"`overrides` {key}: a resumed run keeps its {key}; start a new run instead")
    else:
        name, text = recipe.read_text(source)
        settings = recipe.resolve_text(text, source, options.changes)
    steps = settings.train.max_steps
    if run and not options.resume and steps == 1:  # as an import without a recipe says
        raise RecipeError(
            f"{run.directory} does not tell how to train; name a recipe with the same model, or add `overrides` "
            "train.max_steps=N, and others such as train.batch_size"
        )
    trackers.check_packages(settings.log)
    options.check_steps(steps)
    return Request(
        recipe_name=name,
        run_name=options.name or run_name or name,
        settings=settings,
        options=options,
        resumed=run if options.resume else None,
    )


def _run_with_settings(options: TrainOptions, runs_dir: Path) -> Run:
    """Find the run to resume, or to begin from."""
    if (name := options.resume or options.begin_from) is None:
        raise UsageError("nothing to train; name a recipe, such as stdlib, or a run with `resume` or `begin_from`")
    run = run_directory.find(name, runs_dir)
    if options.resume and run.weights is not None:
        instead = f"resume {run.directory}, or begin another run with `begin_from` {run.weights}"
        raise UsageError(f"`resume` {run.weights}: only the last checkpoint of a run can be resumed; {instead}")
    return run


def _unit_of_store(source: str, data_dir: Path) -> str | None:
    """Return the unit of the token store of that name; None for a recipe."""
    from txlcli.data.token_store import TokenStore, stores_in

    packaged = recipe.packaged_names()
    if Path(source).is_file() or source.removesuffix(".toml") in packaged:
        return None
    store = data_dir / f"{source}.h5"
    if store.is_file():
        return TokenStore.open(store).unit
    if Path(source).stem == source:  # neither a path nor a file's name
        stores = [path.stem for path in stores_in(data_dir)]
        listing = f"{recipe.LISTING} recipes; stores in {data_dir}: {listed(stores[:MAX_LISTED])}"
        raise UnknownNameError("recipe or store", source, [*stores, *packaged], listing=listing)
    return None


def with_seeds(asked: Request, seeds: int, runs_dir: Path) -> list[Request]:
    """Return one run per seed, from the seed of the settings on; the name of each must be free."""
    if seeds == 1:
        return [asked]
    settings, runs = asked.settings, []
    for seed in range(settings.train.seed, settings.train.seed + seeds):
        name = f"{asked.run_name}-seed{seed}"
        run_directory.check_free(runs_dir / name, force=asked.options.force)
        of_seed = replace(settings, train=replace(settings.train, seed=seed))
        runs.append(replace(asked, run_name=name, settings=of_seed, options=replace(asked.options, name=name)))
    return runs
