"""Trains a recipe into a new run, in one or several processes."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain, islice
from pathlib import Path

import torch

from txlcli.config import recipe
from txlcli.config.model_settings import TransformerSettings
from txlcli.config.settings import Settings
from txlcli.core.training.distributed import World
from txlcli.core.training.loop import Training, new_model
from txlcli.core.training.parallel import device_of_new_weights
from txlcli.data.token_store import TokenStore
from txlcli.errors import BusyError, RecipeError, UsageError
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.system import launcher
from txlcli.workflows.options import TrainOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import execution, out_of_memory, plan, resume, text, trackers
from txlcli.workflows.training.execution import TrainingResult
from txlcli.workflows.training.training_log import OnReport
from txlcli.workflows.workspace import Workspace

MAX_TAKEN = 100  # directories to try; on a file system without locks every directory may seem to be taken


def run(
    recipe_source: str | None, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a recipe into a new run, or resume the run that the options name; `on_report` receives every metric."""
    if options.resume is not None:
        return resume.resume(options.resume, options, workspace, on_report=on_report)
    if recipe_source is None:
        raise UsageError("nothing to train; name a recipe, such as stdlib, or a run with `resume`")
    return train(recipe_source, options, workspace, on_report=on_report)


def train(
    recipe_source: str, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a recipe into a new run, until its end or a limit."""
    settings, directory, store = load_settings(recipe_source, options), Path(), None
    if launcher.is_main():
        directory = new_directory(recipe_source, options, workspace.runs_dir)
        store = text.open_or_prepare_store(settings, workspace)  # before the processes meet, since it may take long
    device = plan.checked_device(settings, workspace.device, processes=launcher.world_size())
    world = execution.join(settings, device)
    with world.failing_together():
        store = store or workspace.open_store(settings.corpus.store, is_verified=launcher.local_rank() > 0)
        world.agree(execution.common_facts(settings, store))
        run = new_run(recipe_source, settings, directory, store)
        training = _new_training(run, store, options, workspace.reporter, world, device)
        if not world.is_rank_zero:
            return execution.execute(run, training, workspace, options, on_report)
        with claim_run_directory(
            run, is_required=options.name is not None or options.force, reporter=workspace.reporter
        ) as run:
            training.directory = run.directory
            run_directory.create(run, store.vocab.to_json(), force=options.force)
            with _discard_run_without_checkpoint(run, training):
                return execution.execute(run, training, workspace, options, on_report)


def load_settings(recipe_source: str, options: TrainOptions) -> Settings:
    """Load a recipe with changes, and check that it can be trained here up to the last step asked for."""
    settings = recipe.load(recipe_source, options.changes)
    _check_vanilla(settings, recipe_source)
    trackers.check_packages(settings.log)
    options.check_steps(settings.train.max_steps)
    return settings


def _check_vanilla(settings: Settings, recipe_source: str) -> None:
    """Reject memory for a new vanilla model."""
    model = settings.model
    if isinstance(model, TransformerSettings) and model.auxiliary_losses and settings.train.mem_len:
        reason = "model.auxiliary_losses belong to the vanilla model, which has no memory"
        raise RecipeError(f"{recipe_source}: {reason}; `overrides` train.mem_len=0")


def new_directory(recipe_source: str, options: TrainOptions, runs_dir: Path) -> Path:
    """Return the directory for the run of a recipe, without creating it."""
    directory = runs_dir / (options.name or recipe.read_text(recipe_source)[0])
    if options.name is None and not options.force:
        directory = next(run_directory.free_directories(runs_dir, directory.name))
    run_directory.check_free(directory, force=options.force)
    return directory


@contextmanager
def claim_run_directory(
    run: Run, *, is_required: bool, reporter: Reporter, max_taken: int = MAX_TAKEN
) -> Iterator[Run]:
    """Lock the directory of a new run while the block runs; no other process writes there.

    If another training has taken the directory meanwhile, the run gets the next free one, unless `is_required`.
    """
    others = islice(
        run_directory.free_directories(run.directory.parent, run.recipe_name), 0 if is_required else max_taken
    )
    error = BusyError(f"{run.directory} was taken by another process; give another `name`")
    with ExitStack() as lock:
        for directory in chain([run.directory], others):
            try:
                lock.enter_context(run_directory.locked(directory))
            except BusyError as busy:
                error = busy
                continue
            if is_required or not directory.exists():
                break
            lock.close()
        else:
            raise error
        if directory != run.directory:
            reporter.say(f"{run.directory} was taken by another process; this run is {directory}")
        yield dataclasses.replace(run, directory=directory)


@contextmanager
def _discard_run_without_checkpoint(run: Run, training: Training) -> Iterator[None]:
    """Restore the runs directory if a new run ends before its first checkpoint.

    A run that replaces another one must also have taken a step.
    """
    try:
        yield
    finally:
        if run.best_or_last.exists() and not execution.replaced_without_progress(run, training):
            run_directory.delete_replaced(run)
        else:
            run_directory.restore_replaced(run)


def new_run(recipe_source: str, settings: Settings, directory: Path, store: TokenStore | None) -> Run:
    """Describe the run of a recipe; nothing is written.

    Without a store it has the vocabulary size of [published], and no vocabulary.
    """
    vocab_size = store.vocab.size if store else settings.published.vocab_size
    source = f"the store {store.path}" if store else "published.vocab_size"
    assert vocab_size is not None
    return Run(
        directory=directory,
        recipe_name=recipe.read_text(recipe_source)[0],
        settings=settings,
        vocab_fingerprint=store.fingerprint if store else "",
        vocab_size=vocab_size,
        parameters=plan.count_parameters(settings, vocab_size, source),
        metric=store.metric if store else "",
    )


def _new_training(
    run: Run, store: TokenStore, options: TrainOptions, reporter: Reporter, world: World, device: torch.device
) -> Training:
    """Build the training of a new run; whatever can fail does so before the run's directory is created."""
    train = run.settings.train
    splits = text.read_splits(run.settings, store, reporter)
    described = plan.describe_devices(device, world.size)
    planned = plan.plan(run, until_step=options.max_steps, store=store, devices=described, processes=world.size)
    reporter.say(f"training {planned}")
    if splits[0].lane_len <= train.seg_len:
        reporter.say(
            f"each of the {train.batch_size} parallel parts of the text has {splits[0].lane_len:,} tokens, no more "
            "than a segment: every step is an epoch and no memory is used; lower train.batch_size or train.seg_len"
        )
    with out_of_memory.explained(run.settings, run.vocab_size, device, world.size):
        of_weights = device_of_new_weights(train, device)
        model = new_model(run.settings.model, run.vocab_size, seed=train.seed, device=of_weights)
        return execution.build_training(model, run, store, splits, world, device=device)
