"""Resolves what the user asks to train before PyTorch is imported: a recipe, one for a store, or that of a run."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.errors import MAX_LISTED, RecipeError, RunError, UnknownNameError, UsageError, listed
from txlcli.runs import lifecycle, run_directory
from txlcli.runs.run_directory import Run
from txlcli.system.input_files import check_regular
from txlcli.workflows.training import trackers
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.workspace import Workspace

RECIPES = {"byte": "stdlib", "char": "stdlib", "word": "ptb-small", "piece": "ptb-small", "id": "ptb-small"}
"""Small packaged recipe for each unit of a store."""
EARLIER_RUN = "TXL_EARLIER_RUN"
"""Variable with the id of the run that had the name of a new one before; processes that start again leave it alone."""
FIXED_KEYS = (
    "train.batch_size",
    "train.seg_len",
    "train.seg_len_jitter",
    "train.mem_len",
    "train.reread_len",
    "train.roll_lanes",
    "train.reset_at_documents",
    "train.optimizer",
    "train.momentum",
    "train.average",
    "train.seed",
    "train.valid_seg_len",  # validation losses at other values are not comparable
    "train.valid_attn_len",
    "train.valid_tokens",
)
"""Settings that a resumed run keeps, with those of text and model: weights, memory and position depend on them."""


@dataclass(frozen=True, kw_only=True)
class Request:
    """A training run that the user asks for, with its settings resolved."""

    recipe_name: str
    run_name: str
    """Name of the run; see `is_numbered`."""
    settings: Settings
    options: TrainOptions
    resumed: Run | None = None
    """The run to resume, as it was stopped; None for a new run."""
    begin_from: Run | None = None
    """The run with whose weights the new one begins."""

    @property
    def is_numbered(self) -> bool:
        """True if -2, -3 and so on follow the name of a new run where it is taken."""
        return self.options.name is None and not self.options.force

    def check_free(self, runs_dir: Path) -> None:
        """Reject a new run whose name is taken, unless it is numbered."""
        if not self.is_numbered:
            lifecycle.check_free(runs_dir / self.run_name, force=self.options.force)

    def directories(self, runs_dir: Path) -> Iterator[Path]:
        """Return directories for a new run: the one of its name, or all free ones if it is numbered."""
        self.check_free(runs_dir)
        if self.is_numbered:
            return lifecycle.free_directories(runs_dir, self.run_name)
        return iter([runs_dir / self.run_name])

    def with_seeds(self, count: int, runs_dir: Path) -> list["Request"]:
        """Return one run per seed, from the seed of the settings on; the name of each must be free."""
        if count == 1:
            return [self]
        train = self.settings.train
        requests = []
        for seed in range(train.seed, train.seed + count):
            name = f"{self.run_name}-seed{seed}"
            settings = self.settings.with_train(seed=seed)
            options = replace(self.options, name=name)
            request = replace(self, run_name=name, settings=settings, options=options)
            request.check_free(runs_dir)
            requests.append(request)
        return requests


def resolve(source: str | None, options: TrainOptions, workspace: Workspace, *, restarts: int = 0) -> Request:
    """Resolve a recipe, or the name of a token store; without one, the run that `resume` or `begin_from` names.

    A run with these settings can be trained here up to the last step. After `restarts` of its processes, a run that
    has begun is resumed, if the options name it; its limits stay, and it is not profiled again.
    """
    runs_dir = workspace.runs_dir
    if options.resume is not None:
        if source is not None:
            raise UsageError("`resume` continues a run with its own recipe; leave out the recipe")
        request = _resumed(run_directory.find(options.resume, runs_dir), options)
    elif source is not None:
        request = _of_source(source, options, workspace)
    elif options.begin_from is not None:
        request = _with_settings_of(run_directory.find(options.begin_from, runs_dir), options)
    else:
        raise UsageError("nothing to train; name a recipe, such as stdlib, or a run with `resume` or `begin_from`")
    if restarts:
        workspace.reporter.say(f"a process was lost; all processes were started again (restart {restarts})")
        run = _restarted_run(request, runs_dir)
        if run is not None:
            resume = TrainOptions(
                resume=str(run.directory), max_steps=options.max_steps, max_minutes=options.max_minutes
            )
            request = _resumed(run, resume)
        request = replace(request, options=replace(request.options, profile=None))
    if request.resumed is None and options.begin_from is not None:
        request = replace(request, begin_from=run_directory.find(options.begin_from, runs_dir))
    options.check_steps(request.settings.train.max_steps)
    trackers.check_packages(request.settings.log)
    return request


def _of_source(source: str, options: TrainOptions, workspace: Workspace) -> Request:
    """Resolve a recipe, or the name of a token store: the small recipe of its unit, or a run's settings, on it."""
    source = source.removesuffix("/")  # a shell completes the name of a store by the folder of its text
    unit = _unit_of_store(source, workspace.data_dir)
    if unit is None:
        return _of_recipe(source, options)
    options = replace(options, overrides=(f"corpus.store={source}", *options.overrides))
    explanation = f"{source} is a token store (unit {unit})"
    if options.begin_from is not None:
        workspace.reporter.say(f"{explanation}: training with the settings of {options.begin_from} on it")
        run = run_directory.find(options.begin_from, workspace.runs_dir)
        return _with_settings_of(run, options, new_name=source)
    name = RECIPES[unit]
    workspace.reporter.say(f'{explanation}: training a small model on it, with the settings of the recipe "{name}"')
    return _of_recipe(name, options, new_name=source)


def _of_recipe(source: str, options: TrainOptions, new_name: str | None = None) -> Request:
    """Resolve a recipe, a file or the name of a packaged one, with changes of its settings."""
    name, text = recipe.read_text(source)
    settings = recipe.resolve_text(text, source, options.changes)
    run_name = options.name or new_name or name
    return Request(recipe_name=name, run_name=run_name, settings=settings, options=options)


def _with_settings_of(run: Run, options: TrainOptions, new_name: str | None = None) -> Request:
    """Resolve a new run with the settings, with changes, of the run whose weights it begins with."""
    settings = recipe.resolve(recipe.to_table(run.settings), str(run.directory), options.changes)
    if settings.train.max_steps == 1:  # as an import without a recipe says
        raise RecipeError(
            f"{run.directory} does not tell how to train; name a recipe with the same model, or add `overrides` "
            "train.max_steps=N, and others such as train.batch_size",
            setting="train.max_steps",
        )
    run_name = options.name or new_name or run.recipe_name
    return Request(recipe_name=run.recipe_name, run_name=run_name, settings=settings, options=options)


def _resumed(run: Run, options: TrainOptions) -> Request:
    """Resolve the settings, with changes, of a run to resume."""
    if run.weights is not None:
        instead = f"resume {run.directory}, or begin another run with `begin_from` {run.weights}"
        raise UsageError(f"`resume` {run.weights}: only the last checkpoint of a run can be resumed; {instead}")
    before = recipe.to_table(run.settings)
    settings = recipe.resolve(before, str(run.directory), options.changes)
    for key in recipe.differences([before, recipe.to_table(settings)]):
        if key in FIXED_KEYS or key.startswith(("corpus.", "model.")):
            message = f"`overrides` {key}: a resumed run keeps its {key}; start a new run instead"
            raise RecipeError(message, setting=key)
    return Request(recipe_name=run.recipe_name, run_name=run.name, settings=settings, options=options, resumed=run)


def _unit_of_store(source: str, data_dir: Path) -> str | None:
    """Return the unit of the token store of that name, which its text may have, too; None for a recipe."""
    from txlcli.data.token_store import TokenStore, stores_in

    packaged = recipe.packaged_names()
    if source.removeprefix("recipes/").removesuffix(".toml") in packaged:
        return None
    store = data_dir / f"{source}.h5"
    is_plain_name = Path(source).name == source
    if is_plain_name and store.is_file():
        return TokenStore.open(store).unit
    if check_regular(Path(source)).is_file():
        return None
    stores = [path.stem for path in stores_in(data_dir)]
    in_data = listed(stores) if len(stores) <= MAX_LISTED else 'see "txl prepare --list"'
    listing = f"{recipe.LISTING} recipes; stores in {data_dir}: {in_data}"
    known = [*stores, *packaged]
    like = Path(source).name.removesuffix(".toml")
    if Path(f"{source}.toml").is_file():
        like = f"{source}.toml"
        known.append(like)
    raise UnknownNameError("recipe or store", source, known, like=like, listing=listing)


def remember_earlier_run(name: str, runs_dir: Path) -> None:
    """Remember the run that has the name of a new one, for the processes that are started now: `force` replaces it."""
    with contextlib.suppress(RunError):  # of a damaged run, which `force` replaces, too
        if run_directory.is_run(name, runs_dir):
            os.environ[EARLIER_RUN] = run_directory.find(name, runs_dir).id or ""


def _restarted_run(request: Request, runs_dir: Path) -> Run | None:
    """Return the run of a request if its processes, before they were started again, have saved a checkpoint."""
    name = request.options.name
    if name is None or not run_directory.is_run(name, runs_dir):
        return None
    run = run_directory.find(name, runs_dir)
    if run.id in (None, os.environ.get(EARLIER_RUN)):  # only runs of earlier versions have no id
        return None
    has_checkpoint = (run.directory / run_directory.LAST).exists()
    if not has_checkpoint or run.settings != request.settings:
        return None
    return run
