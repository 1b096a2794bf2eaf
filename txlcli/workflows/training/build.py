"""Builds what a training run needs: the processes, the run directory, the model and its optimizer."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from txlcli import __version__
from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.config.train_settings import TrainSettings
from txlcli.core.architectures import registry
from txlcli.core.architectures.registry import new_model
from txlcli.core.kernels.determinism import check_deterministic
from txlcli.core.kernels.device import check_precision, pick_device
from txlcli.core.model.base import LanguageModel
from txlcli.core.training import checkpoint, distributed
from txlcli.core.training.checkpoint import Checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.loop import Training
from txlcli.core.training.saving import Saver
from txlcli.core.training.schedule import scheduled_lr
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import ValidationText
from txlcli.data.token_store import TokenStore
from txlcli.errors import RecipeError, RunError, StoreError, UsageError
from txlcli.runs import lifecycle, run_directory
from txlcli.runs.loading import check_checkpoint, check_vocabulary
from txlcli.runs.run_directory import Run
from txlcli.system import launcher
from txlcli.workflows.preparation import preparing
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import initial_weights, out_of_memory
from txlcli.workflows.training.initial_weights import InitialWeights
from txlcli.workflows.training.plan import Plan, decide_compile
from txlcli.workflows.training.resolve import Request
from txlcli.workflows.training.text import read_splits
from txlcli.workflows.workspace import Workspace, explain_attention

LR_JUMP = 1.1
"""Factor between the learning rates of two steps from which a resumed run reports it."""


@dataclass(frozen=True)
class Job:
    """A training run that is ready to take its steps."""

    plan: Plan
    training: Training


@contextmanager
def built(request: Request, workspace: Workspace) -> Iterator[Job]:
    """Build the training of a new run, or of one that was stopped, exactly where it stopped.

    The block trains it. Until it ends, the run is locked, and all processes fail together.
    """
    settings = request.settings
    if request.resumed is None and launcher.is_main():
        request.check_free(workspace.runs_dir)
        # Before the processes meet, since it may take long:
        preparing.prepare_if_missing(settings.corpus.store, workspace.data_dir, workspace.reporter)
    device = pick_device(workspace.device)
    check_device(settings, device, processes=launcher.place().world_size)
    world = distributed.join(device, rank_timeout_s=settings.train.rank_timeout, next_step=launcher.RESUME)
    with world.failing_together(), ExitStack() as files:
        store = workspace.open_store(settings.corpus.store)
        builder = Builder(request, workspace, device, world, store)
        if request.resumed is None:
            yield builder.start(files)
        else:
            yield builder.resume(request.resumed, files)


def check_device(settings: Settings, device: torch.device, *, processes: int) -> None:
    """Reject settings that a device does not support: precision, determinism, processes."""
    train = settings.train
    check_precision(train.precision, device)
    if train.deterministic:
        check_deterministic(device, processes=processes)
    if train.parallel != "ddp" and processes == 1:
        raise UsageError(
            f'train.parallel = "{train.parallel}" needs at least two processes; start with `processes` N or '
            "torchrun, or add `overrides` train.parallel=ddp"
        )


@dataclass(frozen=True)
class Builder:
    """Builds the training of a run in one of the processes that train it together."""

    request: Request
    workspace: Workspace
    device: torch.device
    world: World
    store: TokenStore

    def start(self, files: ExitStack) -> Job:
        """Build the training of a new run; `files` keeps its directory locked, and removes it without a checkpoint."""
        request = self.request
        reporter = self.workspace.reporter
        store = self.store
        weights = None
        if request.begin_from is not None:
            weights = initial_weights.read(request.begin_from, request.settings.model, store, reporter)
        self._agree(weights.checkpoint if weights else None)
        registry.count_parameters(request.settings.model, store.vocab.size)  # rejects a model that cannot be made
        segments, valid = read_splits(request.settings, store, reporter)
        directory = self._claim_directory(files)  # writes the file of a lock, so that these checks come first
        run = new_run(request, directory, store, weights)
        plan = self._plan(run, segments)
        reporter.say(f"training {plan}")
        for note in plan.notes:
            reporter.say(note)
        training = self._build(plan, segments, valid, weights=weights)
        if self.world.is_rank_zero:
            created = lifecycle.created(run, store.vocab.to_json(), force=request.options.force)
            files.enter_context(created)
        return Job(plan, training)

    def resume(self, stopped: Run, files: ExitStack) -> Job:
        """Build the training of a run exactly where it stopped; `files` keeps its directory locked."""
        request = self.request
        reporter = self.workspace.reporter
        if self.world.is_rank_zero:
            files.enter_context(lifecycle.locked(stopped.directory))
            lifecycle.remove_temporary_files(stopped.directory)
        saved = _load_checkpoint(stopped, self.store)
        self._agree(saved)
        run = _with_settings(stopped, request.settings, saved.state["step"])
        segments, valid = read_splits(run.settings, self.store, reporter)
        plan = self._plan(run, segments)
        training = self._build(plan, segments, valid, saved=saved)
        _check_resumed(run, stopped, training, request.options.max_steps)
        _report_changes(run, stopped, training.step, reporter)
        if self.world.is_rank_zero:
            run.drop_metrics_after(training.step, reported=training.reported, validated=training.validations.last_step)
            run_directory.update(run)
        last_step = run.settings.train.max_steps
        reporter.say(f"resuming {run.directory} at step {training.step:,} of {last_step:,}, {plan.devices}")
        for note in plan.notes:
            reporter.say(note)
        return Job(plan, training)

    def _claim_directory(self, files: ExitStack) -> Path:
        """Return the directory of a new run, which rank 0 makes and locks."""

        def claim() -> str:
            claimed = lifecycle.claimed(self.request.directories(self.workspace.runs_dir))
            return str(files.enter_context(claimed))

        return Path(self.world.from_rank_0(claim))

    def _agree(self, saved: Checkpoint | None) -> None:
        """Compare settings, texts and checkpoint of all processes."""
        if self.world.size == 1:
            return
        facts = {"the release of txl": __version__, **recipe.facts(self.request.settings)}
        facts["the option `max_steps`"] = str(self.request.options.max_steps or "absent")
        facts["the checkpoint"] = "none" if saved is None else saved.fingerprint()
        for split in ("train", "valid"):
            facts[f"the {split} split (SHA-256)"] = self.store.digest(split) or "absent"
        self.world.agree(facts)

    def _plan(self, run: Run, segments: TrainingSegments) -> Plan:
        return Plan(
            run=run,
            store=self.store,
            segments=segments,
            until_step=self.request.options.max_steps,
            device=self.device,
            processes=self.world.size,
        )

    def _build(
        self,
        plan: Plan,
        segments: TrainingSegments,
        valid: ValidationText | None,
        *,
        saved: Checkpoint | None = None,
        weights: InitialWeights | None = None,
    ) -> Training:
        """Build the training of a run from a checkpoint, weights of another run or new ones; nothing is written."""
        run = plan.run
        reporter = self.workspace.reporter
        explain_attention(run.settings, self.device, reporter)
        train = decide_compile(plan, saved, self.world, reporter)
        identity = {
            run_directory.RUN_ID: run.id,
            "recipe": run.recipe_name,
            "model": recipe.function_keys(run.settings.model),
            "vocab_fingerprint": run.vocab_fingerprint,
            "train_sha256": self.store.digest("train"),
            "valid_sha256": self.store.digest("valid"),
        }
        saver = Saver(run.directory, identity)
        out_of_memory.warn(plan, reporter)
        with out_of_memory.explained(plan):
            model = _make_model(run, train, saved, weights, self.device)
            training = Training(model, train, segments, valid, saver, self.world)
            if saved is not None:
                training.restore(saved)
        return training


def new_run(request: Request, directory: Path, store: TokenStore | None, weights: InitialWeights | None = None) -> Run:
    """Describe the run of a recipe; nothing is written.

    Without a store it has the vocabulary size of [published], and no vocabulary.
    """
    settings = request.settings
    vocab_size = settings.published.vocab_size
    fingerprint = ""
    metric = ""
    corpus = None
    if store is not None:
        vocab_size = store.vocab.size
        fingerprint = store.fingerprint
        metric = store.metric
        corpus = store.corpus
    assert vocab_size is not None
    return Run(
        directory=directory,
        recipe_name=request.recipe_name,
        settings=settings,
        vocab_fingerprint=fingerprint,
        vocab_size=vocab_size,
        parameters=registry.count_parameters(settings.model, vocab_size),
        metric=metric,
        corpus=corpus,
        origin=weights.origin if weights else None,
    )


def _make_model(
    run: Run, train: TrainSettings, saved: Checkpoint | None, weights: InitialWeights | None, device: torch.device
) -> LanguageModel:
    """Make the model of a run with the weights of a checkpoint, of another run, or new ones."""
    if train.parallel == "fsdp":  # the device is to hold a part of the weights
        device = torch.device("cpu")
    model_settings = run.settings.model
    if saved is not None:
        return checkpoint.build_model(model_settings, run.vocab_size, saved).to(device)
    model = new_model(model_settings, run.vocab_size, seed=train.seed, device=device)
    if weights is not None:
        weights.copy_into(model)
    return model


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


def _check_resumed(run: Run, stopped: Run, training: Training, until_step: int | None) -> None:
    """Reject a resume if nothing is left to do, or if validations would not be comparable.

    A validation that was interrupted is left to do.
    """
    step = training.step
    last_step = run.settings.train.max_steps
    if step > last_step:
        message = f"{run.directory} is already at step {step:,}; train.max_steps cannot be {last_step:,}"
        raise RecipeError(message, setting="train.max_steps")
    if training.has_ended:
        longer = "train.max_steps=N" if step == last_step else "train.stop_after=none"
        raise RunError(f"{run.directory} has finished its {step:,} steps; to train it longer add `overrides` {longer}")
    if until_step is not None:
        is_reached = step == until_step and not training.validation_is_due()
        if step > until_step or is_reached:
            raise UsageError(
                f"`max_steps` {until_step}: {run.directory} is already at step {step:,}; give a later step"
            )
    batch_size = run.settings.train.valid_batch_size
    if training.validations.last_step and batch_size != stopped.settings.train.valid_batch_size:
        raise RecipeError(
            f"`overrides` train.valid_batch_size={batch_size}: the run was validated with another one, and losses "
            "are not comparable, since each part of a batch begins without context; start a new run instead",
            setting="train.valid_batch_size",
        )


def _with_settings(stopped: Run, settings: Settings, step: int) -> Run:
    """Return a run that was stopped at a step with its new settings, and the record of what changed."""
    differences = recipe.differences([recipe.to_table(stopped.settings), recipe.to_table(settings)])
    changes = stopped.changes
    if differences:
        changes = (*changes, run_directory.Change(step, differences))
    return replace(stopped, settings=settings, changes=changes)


def _report_changes(run: Run, stopped: Run, step: int, reporter: Reporter) -> None:
    """Report the settings that changed since a run was stopped, and a learning rate that jumps."""
    for change in run.changes[len(stopped.changes) :]:
        for name, (old, new) in change.settings.items():
            before = recipe.format_value(old, off="none")
            now = recipe.format_value(new, off="none")
            reporter.say(f"{name} is now {now}; it was {before}")
    begins = run.settings.train.schedule_steps
    if run.settings.train.average == "mean" and stopped.settings.train.schedule_steps < step < begins:
        reporter.say(f"the mean of the weights is dropped and begins again after step {begins:,}")
    if run.settings.train.max_steps != stopped.settings.train.max_steps:
        next_step = min(step + 1, stopped.settings.train.max_steps)  # of a finished run, the last one
        old_lr = scheduled_lr(stopped.settings.train, next_step)
        new_lr = scheduled_lr(run.settings.train, step + 1)
        if new_lr > LR_JUMP * old_lr:
            reporter.say(
                f"the learning rate jumps from {old_lr:.2g} to {new_lr:.2g} with the longer schedule; without a jump: "
                'train with train.schedule = "wsd" and stop before its decay, or start a new run with `begin_from`'
            )
