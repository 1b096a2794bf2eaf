"""Starts the training of a new run, or resumes a run from its last checkpoint, in one or several processes."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from txlcli import corpora
from txlcli.config import recipe
from txlcli.config.settings import Settings
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
from txlcli.errors import RecipeError, RunError, StoreError, TrainingError, UsageError
from txlcli.runs import run_directory
from txlcli.runs.loading import check_checkpoint, check_vocabulary
from txlcli.runs.run_directory import Run
from txlcli.system import launcher
from txlcli.workflows.preparation import preparing
from txlcli.workflows.preparation.options import PrepareOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import execution, initial_weights, out_of_memory, request
from txlcli.workflows.training.execution import OnReport, TrainingResult, settings_facts
from txlcli.workflows.training.initial_weights import InitialWeights
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.plan import Plan, check_device, decide_compile
from txlcli.workflows.training.request import Request
from txlcli.workflows.workspace import Workspace, explain_attention

Splits = tuple[TrainingSegments, Split | None]
Beginning = Checkpoint | InitialWeights | None
"""Checkpoint to resume from, or weights of another run; None for new weights."""
LR_JUMP = 1.1
"""Factor between the learning rates of two steps from which a resumed run reports it."""


def run(
    source: str | None, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a recipe into a new run, or resume the run that the options name, until its end or a limit.

    Without a recipe, a new run has the settings of the run that it begins from. `on_report` receives every metric.
    """
    return train(request.read(source, options, workspace), workspace, on_report=on_report)


def train(asked: Request, workspace: Workspace, *, on_report: OnReport | None = None) -> TrainingResult:
    """Train the run that is asked for, a new one or one that was stopped, from exactly where it stopped."""
    settings, options, reporter = asked.settings, asked.options, workspace.reporter
    resumed, directory = asked.resumed, Path()
    if resumed is None and launcher.is_main():
        directory = next(new_directories(asked, workspace.runs_dir))  # rejects a name that is taken
        _prepare_if_missing(settings, workspace)  # before the processes meet, since it may take long
    with _joined(settings, workspace) as (world, device, store), ExitStack() as files:
        if resumed and world.is_rank_zero:
            files.enter_context(run_directory.locked(resumed.directory))
        begin = _load_checkpoint(resumed, store) if resumed else initial_weights.read(asked, store, workspace)
        _agree(world, settings, store, begin)
        run = replace(resumed, settings=settings) if resumed else new_run(asked, directory, store, begin)
        splits = read_splits(settings, store, reporter)
        if not resumed and world.is_rank_zero:
            claimed = run_directory.claimed(new_directories(asked, workspace.runs_dir))  # others may have begun since
            run = replace(run, directory=files.enter_context(claimed))
        plan = Plan(
            run=run, store=store, segments=splits[0], until_step=options.max_steps, device=device, processes=world.size
        )
        if not resumed:
            reporter.say(f"training {plan}")
        training = _build(plan, store, splits, world, reporter, begin=begin)
        del begin  # its weights may be as large as the model
        if resumed:
            _check_resumed(run, resumed, training, options.max_steps)
            plan = replace(plan, run=_record_changes(run, resumed, training, reporter))
            reporter.say(
                f"resuming {run.directory} at step {training.step:,} of {settings.train.max_steps:,}, {plan.devices}"
            )
        elif world.is_rank_zero:
            files.enter_context(run_directory.created(run, store.vocab.to_json(), force=options.force))
        return execution.execute(plan, training, workspace, options, on_report)


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


def new_directories(asked: Request, runs_dir: Path) -> Iterator[Path]:
    """Yield directories for a new run: the one that is asked for, or each free one with the name of the recipe."""
    options = asked.options
    if options.name is None and not options.force:
        yield from run_directory.free_directories(runs_dir, asked.run_name)
    directory = runs_dir / asked.run_name
    run_directory.check_free(directory, force=options.force)
    yield directory


def _agree(world: World, settings: Settings, store: TokenStore, begin: Beginning) -> None:
    """Compare settings, texts and checkpoint of all processes."""
    if world.size > 1:
        saved = begin.checkpoint if isinstance(begin, InitialWeights) else begin
        facts = settings_facts(settings) | {"the checkpoint": saved.fingerprint() if saved else "none"}
        facts |= {f"the {split} split (SHA-256)": store.digest(split) or "absent" for split in ("train", "valid")}
        world.agree(facts)


def new_run(asked: Request, directory: Path, store: TokenStore | None, begin: Beginning = None) -> Run:
    """Describe the run of a recipe; nothing is written.

    Without a store it has the vocabulary size of [published], and no vocabulary.
    """
    settings = asked.settings
    vocab_size = store.vocab.size if store else settings.published.vocab_size
    assert vocab_size is not None
    return Run(
        directory=directory,
        recipe_name=asked.recipe_name,
        settings=settings,
        vocab_fingerprint=store.fingerprint if store else "",
        vocab_size=vocab_size,
        parameters=registry.count_parameters(settings.model, vocab_size),
        metric=store.metric if store else "",
        origin=begin.origin if isinstance(begin, InitialWeights) else None,
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
    if segments.lane_len <= train.seg_len:
        reporter.say(
            f"each of the {train.batch_size} parallel parts of the text has {segments.lane_len:,} tokens, no more than "
            "a segment: every step is an epoch and no memory is used; lower train.batch_size or train.seg_len"
        )
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


def _build(
    plan: Plan,
    store: TokenStore,
    splits: Splits,
    world: World,
    reporter: Reporter,
    *,
    begin: Beginning,
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
    with out_of_memory.explained(plan):
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


def _record_changes(run: Run, before: Run, training: Training, reporter: Reporter) -> Run:
    """Return the run with the changes of its settings, and report them; write them, without reports of later steps."""
    step = training.step
    new = recipe.differences([recipe.to_table(version.settings) for version in (before, run)])
    for name, (old, value) in new.items():
        reporter.say(f"{name} is now {recipe.format_value(value)}; it was {recipe.format_value(old)}")
    if "train.max_steps" in new:
        before_lr, lr = (scheduled_lr(version.settings.train, step + at) for at, version in enumerate((before, run)))
        if lr > LR_JUMP * before_lr:
            reporter.say(
                f"the learning rate jumps from {before_lr:.2g} to {lr:.2g} with the longer schedule; without a jump: "
                'train with train.schedule = "wsd" and stop before its decay, or start a new run with `begin_from`'
            )
    if new:
        run = replace(run, changes=(*run.changes, run_directory.Change(step, new)))
    if training.world.is_rank_zero:
        run.drop_metrics_after(step, validated=training.validated)
        run_directory.update(run)
    return run
