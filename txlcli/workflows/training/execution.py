"""Trains a run until its end, a limit or a signal, and saves its state in every case. All processes do the same."""

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from types import FrameType

import torch

from txlcli import __version__
from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.model.base import LanguageModel
from txlcli.core.training import distributed
from txlcli.core.training.distributed import World
from txlcli.core.training.loop import Training
from txlcli.core.training.segments import TrainingSegments
from txlcli.core.training.validation import ValidSplit
from txlcli.data.token_store import TokenStore
from txlcli.errors import Interrupted, TxlError
from txlcli.runs import run_directory
from txlcli.runs.run_directory import Run
from txlcli.system import launcher, signals
from txlcli.system.command_lines import command_line
from txlcli.workflows.options import TrainOptions
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.training import out_of_memory, training_log
from txlcli.workflows.training.training_log import OnReport
from txlcli.workflows.workspace import Workspace


@dataclass(frozen=True)
class TrainingResult:
    """State of a run after training has stopped."""

    run: Run
    step: int
    epoch: float
    best_nats: float
    """Lowest validation loss; infinite before the first validation."""
    next_command: str
    """Command that evaluates a finished run, or resumes an unfinished one."""


def join(settings: Settings, device: torch.device) -> World:
    """Join the processes that train together."""
    return distributed.join(device, rank_timeout_s=settings.train.rank_timeout, next_step=launcher.RESUME)


def build_training(
    model: LanguageModel,
    run: Run,
    store: TokenStore,
    splits: tuple[TrainingSegments, ValidSplit | None],
    world: World,
    *,
    device: torch.device,
) -> Training:
    """Build the training of a run."""
    identity = {
        "recipe": run.recipe_name,
        "model": recipe.function_keys(run.settings.model),
        "vocab_fingerprint": run.vocab_fingerprint,
        "train_sha256": store.digest("train"),
        "valid_sha256": store.digest("valid"),
    }
    return Training(model, run.settings.train, *splits, run.directory, identity, world, device=device)


def common_facts(settings: Settings, store: TokenStore, resumed_from: str = "") -> dict[str, str]:
    """Return what must be the same in all processes of a training run, by name."""
    facts = settings_facts(settings)
    facts["the checkpoint"] = resumed_from or "none"
    for split in ("train", "valid"):
        facts[f"the {split} split (SHA-256)"] = store.info(split).sha256 if split in store.splits else "absent"
    return facts


def settings_facts(settings: Settings) -> dict[str, str]:
    """Return the releases and the settings of a process by name."""
    facts = {"the release of txl": __version__, "the release of PyTorch": torch.__version__}
    for section, table in recipe.to_table(settings).items():
        facts |= {f"{section}.{key}": recipe.format_value(value) for key, value in table.items()}
    return facts


def execute(
    run: Run, training: Training, workspace: Workspace, options: TrainOptions, on_report: OnReport | None
) -> TrainingResult:
    """Take the steps of a training run, and save its state at the end.

    A signal that came with the last step is an Interrupted only where the caller continues.
    """
    reporter, data_dir, world = workspace.reporter, workspace.data_dir, training.world
    processes = ["--processes", str(world.size)] if world.size > 1 else []
    next_command = command_line("train", "--resume", str(training.directory), *processes, data_dir=data_dir)
    resume_hint = options.resume_hint or f'resume with "{next_command}"'
    with (
        _collect_signals(reporter) as caught,
        _explain_second_interrupt(training, caught, resume_hint),
        out_of_memory.explained(run.settings, run.vocab_size, training.device, world.size, training=training),
        deterministic_kernels(training.device, enabled=run.settings.train.deterministic),
    ):
        _take_steps(run, training, options, caught, reporter, on_report)
        (stopped_by,) = world.max_of(caught[0] if caught else 0)
    last = run.settings.train.max_steps
    saved = f"saved {training.last_path} at step {training.step:,}"
    if world.is_rank_zero and replaced_without_progress(run, training):
        code = 128 + stopped_by if stopped_by else TxlError.exit_code
        raise Interrupted(f"no step was taken; the earlier run {run.directory} was kept", code)
    if stopped_by and (options.caller_continues or not training.has_ended):
        finished = f"{run.directory} has finished its {last:,} steps"
        message = f"stopped; {finished if training.has_ended else f'{saved}; {resume_hint}'}"
        raise Interrupted(message, 128 + stopped_by)
    if training.has_ended:
        next_command = command_line("eval", str(run.directory), data_dir=data_dir)
    else:
        reporter.say(f"{saved} of {last:,}; {resume_hint}")
    return TrainingResult(run, training.step, training.epoch, training.best_nats, next_command)


def replaced_without_progress(run: Run, training: Training) -> bool:
    """Return True if the run is to replace another one and has not taken a step."""
    return training.step == 0 and run_directory.replaces(run)


def _take_steps(
    run: Run,
    training: Training,
    options: TrainOptions,
    caught: list[int],
    reporter: Reporter,
    on_report: OnReport | None,
) -> None:
    deadline = time.monotonic() + 60 * options.max_minutes if options.max_minutes is not None else None
    failures: list[Exception] = []

    def should_stop() -> bool:
        if launcher.is_orphan() and not caught:
            caught.append(signal.SIGTERM)
        return bool(caught or failures) or (deadline is not None and time.monotonic() >= deadline)

    opened = training_log.opened(run, after=training.step, reporter=reporter, on_report=on_report)
    with opened if training.world.is_rank_zero else nullcontext() as log:
        try:
            for report in training.run(
                report_every=run.settings.log.every,
                should_stop=should_stop,
                until_step=options.max_steps,
                on_valid_tokens=log.show_validation if log else None,
            ):
                try:
                    if log and not failures:
                        log.record(report)
                except (OSError, TxlError) as error:  # the reader of stdout has left, or the disk is full
                    failures.append(error)
        except TxlError:
            if not failures:
                raise
        if failures:
            raise failures[0]  # all processes have saved, if they could


@contextmanager
def _explain_second_interrupt(training: Training, caught: list[int], resume_hint: str) -> Iterator[None]:
    """Turn the KeyboardInterrupt of a second signal into a message: the save that the first one began is lost."""
    try:
        yield
    except KeyboardInterrupt:
        kept = (
            f"the last checkpoint is kept; {resume_hint}" if training.last_path.exists() else "there is no checkpoint"
        )
        raise Interrupted(f"stopped at once, without saving; {kept}", 128 + caught[0]) from None


@contextmanager
def _collect_signals(reporter: Reporter) -> Iterator[list[int]]:
    """Collect Ctrl-C, SIGTERM and SIGHUP while the block runs; a second one raises KeyboardInterrupt."""
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        if caught:
            raise KeyboardInterrupt
        caught.append(number)
        reporter.say("stopping after this step; saving")

    with signals.handling(catch):
        yield caught
