"""Resumes the training of a run from its last checkpoint."""

import dataclasses
from contextlib import nullcontext

import torch

from txlcli.config import recipe
from txlcli.core.training import checkpoint
from txlcli.core.training.distributed import World
from txlcli.core.training.loop import Training
from txlcli.core.training.parallel import device_of_new_weights
from txlcli.errors import RecipeError, RunError, UsageError
from txlcli.runs import run_directory
from txlcli.runs.loading import check_checkpoint, check_vocabulary
from txlcli.runs.recovery import remove_drafts
from txlcli.runs.run_directory import Run
from txlcli.system import launcher
from txlcli.workflows.options import TrainOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import execution, out_of_memory, plan, text, trackers
from txlcli.workflows.training.execution import TrainingResult
from txlcli.workflows.training.training_log import OnReport
from txlcli.workflows.workspace import Workspace

FIXED_KEYS = ("batch_size", "seg_len", "mem_len", "roll_lanes", "optimizer", "momentum", "average", "seed")
VALID_KEYS = ("valid_seg_len", "valid_tokens")  # validation losses at other values are not comparable


def resume(
    run_name: str, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a run that was stopped from exactly where it stopped, until its end or a limit."""
    before = run_directory.find(run_name, workspace.runs_dir)
    with run_directory.locked(before.directory) if launcher.is_main() else nullcontext():
        run = change_settings(before, options.changes)
        trackers.check_packages(run.settings.log)
        options.check_steps(run.settings.train.max_steps)
        device = plan.checked_device(run.settings, workspace.device, processes=launcher.world_size())
        world = execution.join(run.settings, device)
        with world.failing_together():
            training = _restore(run, workspace, world, device)
            _check_unfinished(run, training, options.max_steps)
            _check_valid_batch_size(run, before, validated=training.validated)
            run = _record_changes(run, before, training.step, workspace.reporter)
            if world.is_rank_zero:
                run.drop_metrics_after(training.step, validated=training.validated)
                run_directory.update(run)
                run_directory.delete_replaced(run)  # left where locks do not work
                remove_drafts(run.directory)
            workspace.reporter.say(
                f"resuming {run.directory} at step {training.step:,} of {run.settings.train.max_steps:,}, "
                f"{plan.describe_devices(device, world.size)}"
            )
            return execution.execute(run, training, workspace, options, on_report)


def change_settings(run: Run, changes: list[str]) -> Run:
    """Return the run with changed settings; weights, memory and position in the text depend on none of them."""
    for change in changes:
        section, _, key = change.partition("=")[0].strip().partition(".")
        if section in ("corpus", "model") or (section == "train" and key in FIXED_KEYS + VALID_KEYS):
            raise RecipeError(f"`overrides` {change}: a resumed run keeps its {section}.{key}; start a new run instead")
    table = recipe.override(recipe.to_table(run.settings), changes)
    return dataclasses.replace(
        run, settings=recipe.resolve(table, where=recipe.with_changes(str(run.directory), changes))
    )


def _restore(run: Run, workspace: Workspace, world: World, device: torch.device) -> Training:
    """Restore the training from the last checkpoint."""
    settings = run.settings
    store = workspace.open_store(settings.corpus.store, is_verified=launcher.local_rank() > 0)
    check_vocabulary(run, store)
    path = run.directory / run_directory.LAST
    saved = checkpoint.load(path)
    check_checkpoint(run, saved, path)
    text.check_same_text(run, saved, store)
    if world.size > 1:
        world.agree(execution.common_facts(settings, store, saved.fingerprint()))
    model = checkpoint.build_model(settings.model, run.vocab_size, saved, path)
    splits = text.read_splits(settings, store, workspace.reporter)
    with out_of_memory.explained(settings, run.vocab_size, device, world.size):
        model = model.to(device_of_new_weights(settings.train, device))
        training = execution.build_training(model, run, store, splits, world, device=device)
        training.restore(saved)
    return training


def _check_unfinished(run: Run, training: Training, until_step: int | None) -> None:
    """Reject a resume if nothing is left to do; a validation that was interrupted is left to do."""
    last, due = run.settings.train.max_steps, training.validation_is_due()
    if training.step > last:
        raise RecipeError(f"{run.directory} is already at step {training.step:,}; train.max_steps cannot be {last:,}")
    if training.step == last and not due:
        raise RunError(
            f"{run.directory} has finished its {last:,} steps; to train it longer add `overrides` train.max_steps=N"
        )
    if until_step is not None and (training.step > until_step or (training.step == until_step and not due)):
        raise UsageError(
            f"`max_steps` {until_step}: {run.directory} is already at step {training.step:,}; give a later step, or "
            "leave out `max_steps`"
        )


def _check_valid_batch_size(run: Run, before: Run, *, validated: int) -> None:
    """Reject another batch size for validation after the first one; `validated` is the step of the last validation."""
    batch_size = run.settings.train.valid_batch_size
    if validated and batch_size != before.settings.train.valid_batch_size:
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
    return dataclasses.replace(run, changes=(*run.changes, run_directory.Change(step, new)))
