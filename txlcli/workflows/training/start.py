"""Starts the training of a new run, or resumes a run from its last checkpoint, in one or several processes."""

import dataclasses
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path

import torch

from txlcli import corpora
from txlcli.config import recipe
from txlcli.config.settings import Settings, TrainSettings
from txlcli.core.kernels.device import pick_device
from txlcli.core.model import registry
from txlcli.core.reading.scoring import scored_stream
from txlcli.core.training import checkpoint, distributed
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.loop import Training, new_model
from txlcli.core.training.saving import Saver
from txlcli.core.training.schedule import scheduled_lr
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import Split
from txlcli.data.token_store import TokenStore
from txlcli.errors import BusyError, RecipeError, RunError, StoreError, TrainingError, UsageError
from txlcli.runs import run_directory
from txlcli.runs.loading import check_checkpoint, check_vocabulary
from txlcli.runs.run_directory import Origin, Run
from txlcli.system import launcher
from txlcli.workflows.options import PrepareOptions, TrainOptions
from txlcli.workflows.preparation import preparing
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import execution, initial_weights, out_of_memory
from txlcli.workflows.training.execution import OnReport, TrainingResult, settings_facts
from txlcli.workflows.training.initial_weights import InitialWeights
from txlcli.workflows.training.plan import Plan, check_device, decide_compile
from txlcli.workflows.training.request import read_settings
from txlcli.workflows.workspace import Workspace, explain_attention

Splits = tuple[TrainingSegments, Split | None]
LR_JUMP = 1.1
"""Factor between the learning rates of two steps from which a resumed run reports it."""


def run(
    recipe_source: str | None, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a recipe into a new run, or resume the run that the options name, until its end or a limit.

    Without a recipe, a new run has the settings of the run that it begins from. `on_report` receives every metric.
    """
    name, settings = read_settings(recipe_source, options, workspace.runs_dir)
    if options.resume is not None:
        return _resume(options.resume, settings, options, workspace, on_report)
    directory = Path()
    if launcher.is_main():
        directory = next(new_directories(name, options, workspace.runs_dir))
        _prepare_if_missing(settings, workspace)  # before the processes meet, since it may take long
    with _joined(settings, workspace) as (world, device, store):
        origin = options.begin_from
        weights = initial_weights.read(origin, settings.model, store, workspace) if origin else None
        _agree(world, settings, store, weights.checkpoint if weights else None)
        run = new_run(name, settings, directory, store, weights.origin if weights else None)
        splits, until = read_splits(settings, store, workspace.reporter), options.max_steps
        with claim_run_directory(run, options) if world.is_rank_zero else nullcontext(run) as run:
            plan = Plan(run=run, store=store, segments=splits[0], until_step=until, device=device, processes=world.size)
            workspace.reporter.say(f"training {plan}")
            _warn_of_short_lanes(splits[0].lane_len, settings.train, workspace.reporter)
            training = _build(plan, store, splits, world, workspace.reporter, begin=weights)
            del weights  # they may be as large as the model
            created = run_directory.created(run, store.vocab.to_json(), force=options.force)
            with created if world.is_rank_zero else nullcontext():
                return execution.execute(plan, training, workspace, options, on_report)


def _resume(
    run_name: str, settings: Settings, options: TrainOptions, workspace: Workspace, on_report: OnReport | None
) -> TrainingResult:
    """Train a run that was stopped from exactly where it stopped, until its end or a limit."""
    before = run_directory.find(run_name, workspace.runs_dir)
    if before.weights is not None:
        instead = f"resume {before.directory}, or begin another run with `begin_from` {before.weights}"
        raise UsageError(f"`resume` {before.weights}: only the last checkpoint of a run can be resumed; {instead}")
    with (
        run_directory.locked(before.directory) if launcher.is_main() else nullcontext(),
        _joined(settings, workspace) as (world, device, store),
    ):
        run, step = dataclasses.replace(before, settings=settings), options.max_steps
        saved = _load_checkpoint(run, store)
        _agree(world, settings, store, saved)
        splits = read_splits(settings, store, workspace.reporter)
        plan = Plan(run=run, store=store, segments=splits[0], until_step=step, device=device, processes=world.size)
        training = _build(plan, store, splits, world, workspace.reporter, begin=saved)
        _check_resumed(run, before, training, options.max_steps)
        run = _record_changes(run, before, training.step, workspace.reporter)
        if world.is_rank_zero:
            run.drop_metrics_after(training.step, validated=training.validated)
            run_directory.update(run)
        workspace.reporter.say(
            f"resuming {run.directory} at step {training.step:,} of {settings.train.max_steps:,}, {plan.devices}"
        )
        return execution.execute(dataclasses.replace(plan, run=run), training, workspace, options, on_report)


@contextmanager
def _joined(settings: Settings, workspace: Workspace) -> Iterator[tuple[World, torch.device, TokenStore]]:
    """Check the device, join the processes that train together and fail together, and open the store."""
    device, name = pick_device(workspace.device), settings.corpus.store
    check_device(settings, device, processes=launcher.world_size())
    # Verifying a large store takes long: the others do not wait for rank 0 yet.
    store = workspace.open_store(name) if launcher.is_main() else None
    world = distributed.join(device, rank_timeout_s=settings.train.rank_timeout, next_step=launcher.RESUME)
    with world.failing_together():
        yield world, device, store or workspace.open_store(name, is_verified=launcher.local_rank() > 0)


def _agree(world: World, settings: Settings, store: TokenStore, saved: Checkpoint | None) -> None:
    """Compare settings, texts and checkpoint of all processes."""
    if world.size > 1:
        facts = settings_facts(settings) | {"the checkpoint": saved.fingerprint() if saved else "none"}
        facts |= {f"the {split} split (SHA-256)": store.digest(split) or "absent" for split in ("train", "valid")}
        world.agree(facts)


def new_directories(name: str, options: TrainOptions, runs_dir: Path) -> Iterator[Path]:
    """Yield directories for the run of a recipe of this name: the one that is asked for, or each free one."""
    if options.name is None and not options.force:
        yield from run_directory.free_directories(runs_dir, name)
    directory = runs_dir / (options.name or name)
    run_directory.check_free(directory, force=options.force)
    yield directory


@contextmanager
def claim_run_directory(run: Run, options: TrainOptions) -> Iterator[Run]:
    """Lock the first directory for a new run that no other process has locked, while the block runs."""
    with ExitStack() as lock:
        for directory in new_directories(run.recipe_name, options, run.directory.parent):
            try:
                lock.enter_context(run_directory.locked(directory))
            except BusyError:
                if options.name is not None or options.force:
                    raise
            else:
                yield dataclasses.replace(run, directory=directory)
                return


def new_run(
    name: str, settings: Settings, directory: Path, store: TokenStore | None, origin: Origin | None = None
) -> Run:
    """Describe the run of a recipe; nothing is written.

    Without a store it has the vocabulary size of [published], and no vocabulary.
    """
    vocab_size = store.vocab.size if store else settings.published.vocab_size
    assert vocab_size is not None
    try:
        parameters = registry.count_parameters(settings.model, vocab_size)
    except RecipeError as error:
        source = f"the store {store.path}" if store else "published.vocab_size"
        raise RecipeError(f"{source}: {error}, or none: `overrides` model.cutoffs=[]") from error
    return Run(
        directory=directory,
        recipe_name=name,
        settings=settings,
        vocab_fingerprint=store.fingerprint if store else "",
        vocab_size=vocab_size,
        parameters=parameters,
        metric=store.metric if store else "",
        origin=origin,
    )


def _prepare_if_missing(settings: Settings, workspace: Workspace) -> None:
    """Prepare the store of a corpus that every machine has, and delete what killed commands left of others."""
    name = settings.corpus.store
    corpus, path = corpora.CORPORA.get(name), workspace.store_path(name)
    if corpus is not None and corpus.home is not None and not path.exists():
        workspace.reporter.say(f"no token store at {path} yet; preparing it")
        preparing.run(name, PrepareOptions(), workspace.data_dir, reporter=workspace.reporter)
    preparing.clean(workspace.data_dir)


def read_splits(settings: Settings, store: TokenStore, reporter: Reporter) -> Splits:
    """Read the segments of the train split, and the valid split; None for a store without one."""
    train, corpus = settings.train, settings.corpus
    shuffled = [name for name in ("sentences", "documents") if getattr(corpus, f"shuffle_{name}")]
    starts = store.sentence_starts("train") if shuffled else None
    if shuffled and starts is None:
        reason = f"{store.path} does not record where {shuffled[0]} start"
        raise RecipeError(f"corpus.shuffle_{shuffled[0]}: {reason}; set it to false")
    segments = TrainingSegments(store.ids("train"), train, starts)
    if "valid" not in store.splits:
        for key, value in (("schedule", "plateau"), ("average", "asgd")):
            if getattr(train, key) == value:
                raise RecipeError(
                    f'train.{key} = "{value}" needs a valid split, and {store.path} has none; prepare a text with one, '
                    f"or set another train.{key}"
                )
        reporter.say(f"{store.path} has no valid split: training without validation")
        return segments, None
    valid = scored_stream(store.ids("valid"), store.vocab.boundary, train.valid_tokens)
    if not len(valid[1]):
        raise TrainingError(f"{store.path}: the valid split has no token to predict; prepare a longer text")
    return segments, valid


def _warn_of_short_lanes(lane_len: int, train: TrainSettings, reporter: Reporter) -> None:
    if lane_len <= train.seg_len:
        reporter.say(
            f"each of the {train.batch_size} parallel parts of the text has {lane_len:,} tokens, no more than a "
            "segment: every step is an epoch and no memory is used; lower train.batch_size or train.seg_len"
        )


def _build(
    plan: Plan,
    store: TokenStore,
    splits: Splits,
    world: World,
    reporter: Reporter,
    *,
    begin: Checkpoint | InitialWeights | None,
) -> Training:
    """Build the training of a run from new weights, weights of another run or a checkpoint; nothing is written."""
    run, device = plan.run, plan.device
    saved = begin if isinstance(begin, Checkpoint) else None
    explain_attention(run.settings, device, reporter)
    settings, vocab_size = run.settings.model, run.vocab_size
    train = decide_compile(plan, saved, world, reporter)
    identity = {
        "recipe": run.recipe_name,
        "model": recipe.function_keys(settings),
        "vocab_fingerprint": run.vocab_fingerprint,
        "train_sha256": store.digest("train"),
        "valid_sha256": store.digest("valid"),
    }
    saver = Saver(run.directory, identity)
    first_device = torch.device("cpu") if train.parallel == "fsdp" else device  # which is to hold a part of the weights
    with out_of_memory.explained(run.settings, vocab_size, device, world.size):
        if saved is None:
            model = new_model(settings, vocab_size, seed=train.seed, device=first_device)
            if isinstance(begin, InitialWeights):
                begin.copy_into(model)
        else:
            model = checkpoint.build_model(settings, vocab_size, saved).to(first_device)
        training = Training(model, train, *splits, saver, world)
        if saved is not None:
            training.restore(saved)
    return training


def _load_checkpoint(run: Run, store: TokenStore) -> Checkpoint:
    """Read the last checkpoint; reject a store of another text than its position, losses and memory belong to."""
    path = run.directory / run_directory.LAST
    check_vocabulary(run, store)
    saved = checkpoint.load(path)
    check_checkpoint(run, saved, path)
    splits = ["train"] if saved.state.get("best_nats") is None else ["train", "valid"]
    for split in splits:
        digest = store.digest(split)
        if saved.state.get(f"{split}_sha256", digest) != digest:
            raise StoreError(
                f"{store.path} holds another {split} split than the one of {run.directory}; prepare that text again, "
                "or start a new run"
            )
    return saved


def _check_resumed(run: Run, before: Run, training: Training, until_step: int | None) -> None:
    """Reject a resume if nothing is left to do, or if validations would not be comparable.

    A validation that was interrupted is left to do.
    """
    last, due, step = run.settings.train.max_steps, training.validation_is_due(), training.step
    if step > last:
        raise RecipeError(f"{run.directory} is already at step {step:,}; train.max_steps cannot be {last:,}")
    if training.has_ended:
        longer = "train.max_steps=N" if step == last else "train.stop_after=none"
        raise RunError(f"{run.directory} has finished its {step:,} steps; to train it longer add `overrides` {longer}")
    if until_step is not None and (step > until_step or (step == until_step and not due)):
        raise UsageError(f"`max_steps` {until_step}: {run.directory} is already at step {step:,}; give a later step")
    batch_size = run.settings.train.valid_batch_size
    if training.validated and batch_size != before.settings.train.valid_batch_size:
        raise RecipeError(
            f"`overrides` train.valid_batch_size={batch_size}: the run was validated with another one, and losses "
            "are not comparable, since each part of a batch begins without context; start a new run instead"
        )


def _record_changes(run: Run, before: Run, step: int, reporter: Reporter) -> Run:
    """Return the run with the changes of its settings after `step`, and report them."""
    new = recipe.differences([recipe.to_table(version.settings) for version in (before, run)])
    if not new:
        return run
    for name, (old, value) in new.items():
        reporter.say(f"{name} is now {recipe.format_value(value)}; it was {recipe.format_value(old)}")
    before_lr, lr = (scheduled_lr(version.settings.train, step + at) for at, version in enumerate((before, run)))
    if "train.max_steps" in new and lr > LR_JUMP * before_lr:
        reporter.say(
            f"the learning rate jumps from {before_lr:.2g} to {lr:.2g} with the longer schedule; without a jump: train "
            'with train.schedule = "wsd" and stop before its decay, or start a new run with `begin_from`'
        )
    return dataclasses.replace(run, changes=(*run.changes, run_directory.Change(step, new)))
