"""Trains a run until its end, a limit or a signal, and saves its state in every case. All processes do the same."""

import dataclasses
import math
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.measures.profiling import WARM_UP, StepProfile, StepProfiler
from txlcli.core.training.loop import Training
from txlcli.errors import Interrupted, TxlError, UsageError
from txlcli.runs import lifecycle, log_file, run_directory
from txlcli.system import launcher, signals
from txlcli.system.command_lines import command_line
from txlcli.system.processors import ShareClock
from txlcli.workflows.reporter import Reporter
from txlcli.workflows.result import Result
from txlcli.workflows.training import out_of_memory, trackers
from txlcli.workflows.training.build import Job, built
from txlcli.workflows.training.log import OnReport, SilentLog, TrainingLog
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.plan import Plan
from txlcli.workflows.training.resolve import Request, resolve
from txlcli.workflows.workspace import Workspace

TRACE = "trace.json"
"""File of a run folder with the kernels of profiled steps, for Chrome or Perfetto."""


@dataclass(frozen=True)
class TrainingResult(Result):
    """State of a run after training has stopped."""

    run: run_directory.Run
    step: int
    epoch: float
    best_nats: float
    """Lowest validation loss; infinite before the first validation."""
    next_command: str
    """Command that evaluates a finished run, or resumes an unfinished one."""
    mfu: float | None = None
    """Share of the GPU's peak rate, by its data sheet, in the steps of the last report; None if it is not known."""
    profile: StepProfile | None = None

    def to_json(self) -> dict[str, Any]:
        """Return the result with the folder of the run in place of its settings."""
        return vars(self) | {"run": str(self.run.directory)}

    def table(self) -> list[dict[str, Any]]:
        """Return the reports of training and validation, as metrics.jsonl has them."""
        return list(log_file.read(self.run.directory / run_directory.METRICS))


def train_recipe(
    source: str | None, options: TrainOptions, workspace: Workspace, *, on_report: OnReport | None = None
) -> TrainingResult:
    """Train a recipe into a new run, or resume the run that the options name, until its end or a limit.

    Without a recipe, a new run has the settings of the run that it begins from. `on_report` receives every metric.
    """
    request = resolve(source, options, workspace)
    return train(request, workspace, on_report=on_report)


def train(request: Request, workspace: Workspace, *, on_report: OnReport | None = None) -> TrainingResult:
    """Train the run that is asked for, a new one or one that was stopped, from exactly where it stopped."""
    options = request.options
    reporter = workspace.reporter
    with built(request, workspace) as job:
        training = job.training
        resume_command = options.resume_command or _resume_command(job, workspace)
        with (
            _collect_signals(reporter, training, resume_command) as caught,
            out_of_memory.explained(job.plan, training=training),
            deterministic_kernels(training.device, enabled=training.settings.deterministic),
        ):
            mfu, profile = _take_steps(job, options, caught, reporter, on_report)
            if profile and on_report:
                on_report({"kind": "profile", **dataclasses.asdict(profile)})
            (stopped_by,) = training.world.max_of(caught[0] if caught else 0)
        _check_interrupted(job, stopped_by, resume_command)
        next_command = _conclude(job, workspace, resume_command)
        return TrainingResult(
            run=job.plan.run,
            step=training.step,
            epoch=training.epoch,
            best_nats=training.validations.best_nats,
            next_command=next_command,
            mfu=mfu,
            profile=profile,
        )


def _take_steps(
    job: Job, options: TrainOptions, caught: list[int], reporter: Reporter, on_report: OnReport | None
) -> tuple[float | None, StepProfile | None]:
    """Take the steps; rank 0 returns `mfu` and `profile` of the result."""
    training = job.training
    limit_s = None if options.max_minutes is None else 60 * options.max_minutes
    deadline = math.inf if limit_s is None else time.monotonic() + limit_s
    profiler = None
    if options.profile is not None:  # in every process, so that all reject steps that do not fit
        profiler = _profiler(job.plan, training, options.profile)
    with _opened_log(job, reporter, on_report, limit_s) as log:
        on_step = [log.show_step]
        if profiler and training.world.is_rank_zero:
            on_step.append(profiler.on_step)
        try:
            _say_notes(training, reporter)
            for report in training.run(
                report_every=job.plan.run.settings.log.every,
                should_stop=_stop_condition(caught, log, deadline),
                until_step=job.plan.until_step,
                on_valid_tokens=log.show_scored,
                on_step=on_step,
            ):
                _say_notes(training, reporter)
                log.record(report)
        except TxlError:
            if log.failure is None:  # else this error has the same cause, such as a full disk
                raise
        finally:
            if profiler:
                profiler.stop()
        if log.failure:
            raise log.failure  # all processes have saved, if they could
    return log.mfu, profiler.result if profiler else None


def _stop_condition(caught: list[int], log: TrainingLog | SilentLog, deadline: float) -> Callable[[], bool]:
    """Return a function that is true after a signal, a failure of the log or the deadline.

    A lost launcher counts as SIGTERM.
    """

    def should_stop() -> bool:
        if launcher.is_orphan() and not caught:
            caught.append(signal.SIGTERM)
        return bool(caught or log.failure) or time.monotonic() >= deadline

    return should_stop


@contextmanager
def _opened_log(
    job: Job, reporter: Reporter, on_report: OnReport | None, limit_s: float | None
) -> Iterator[TrainingLog | SilentLog]:
    """Open the trackers and the progress of a training run; only rank 0 has them."""
    plan = job.plan
    step = job.training.step
    if not job.training.world.is_rank_zero:
        yield SilentLog()
        return
    clock = None
    if plan.device.type == "cpu" and torch.get_num_threads() > 1:
        clock = ShareClock(time.monotonic, time.process_time)  # of all threads
    with (
        trackers.opened(plan.run, after=step, say=reporter.warn) as track,
        reporter.progress("training", plan.steps, "steps", start=step, limit_s=limit_s) as progress,
    ):
        yield TrainingLog(
            plan=plan, reporter=reporter, progress=progress, track=track, on_report=on_report, clock=clock
        )


def _profiler(plan: Plan, training: Training, steps: int) -> StepProfiler:
    """Return a profiler of steps after the warm-up, between two validations."""
    train = plan.run.settings.train
    to_fill_memory = -(-train.mem_len // train.seg_len)
    before = to_fill_memory + WARM_UP
    after = training.step + before
    interval = train.valid_every
    if interval == "epoch":
        interval = training.segments.segments_in(training.position.epoch)
    before_validation = interval - (training.steps_of_interval + before) % interval
    if steps > before_validation:
        after += before_validation
    limit = min(interval, plan.steps - after)
    if steps > limit:
        raise UsageError(
            f"`profile` {steps}: {max(limit, 0):,} steps fit between the warm-up, which ends with step {after:,}, and "
            f"the end or a validation, every {interval:,} steps; profile fewer steps, or train for more"
        )
    on_cuda = training.device.type == "cuda"
    return StepProfiler(on_cuda=on_cuda, after=after, steps=steps, trace=plan.run.directory / TRACE)


def _say_notes(training: Training, reporter: Reporter) -> None:
    """Tell the user what a step could not do, once."""
    while training.notes:
        reporter.say(training.notes.pop(0))


@contextmanager
def _collect_signals(reporter: Reporter, training: Training, resume_command: str) -> Iterator[list[int]]:
    """Collect the signals that end a command while the block runs.

    After one that is not a warning, another such signal stops at once, without waiting for the save.
    """
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        is_ending = any(earlier not in signals.WARNINGS for earlier in caught)
        if is_ending and number not in signals.WARNINGS:
            raise KeyboardInterrupt
        if not caught:
            reporter.say("stopping after this step; saving")
        caught.append(number)

    try:
        with signals.handling(catch):
            yield caught
    except KeyboardInterrupt:
        is_saved = training.saver.last_path.exists()
        kept = "there is no checkpoint"
        if is_saved:
            kept = f'the last checkpoint is kept; resume with "{resume_command}"'
        number = caught[0] if caught else signal.SIGINT  # without a signal, a callback of the user has raised it
        raise Interrupted(f"stopped at once, without saving; {kept}", 128 + number) from None


def _check_interrupted(job: Job, stopped_by: int, resume_command: str) -> None:
    """Raise an Interrupted if a signal stopped the training, or if no step replaced an earlier run."""
    training = job.training
    directory = job.plan.run.directory
    code = TxlError.exit_code
    if stopped_by:
        code = 128 + stopped_by
    if training.step == 0 and training.world.is_rank_zero and lifecycle.aside(directory).exists():
        raise Interrupted(f"no step was taken; the earlier run {directory} was kept", code)
    if not stopped_by:
        return
    if training.has_ended:
        raise Interrupted(f"stopped; {directory} has finished its {training.step:,} steps", code)
    raise Interrupted(f'stopped; {_saved(training)}; resume with "{resume_command}"', code)


def _conclude(job: Job, workspace: Workspace, resume_command: str) -> str:
    """Say how far the training is, and return the next command."""
    training = job.training
    run = job.plan.run
    last_step = run.settings.train.max_steps
    if not training.has_ended:
        workspace.reporter.say(f'{_saved(training)} of {last_step:,}; resume with "{resume_command}"')
        return resume_command
    if training.step < last_step:
        stale = training.validations.stale
        workspace.reporter.say(
            f"{stale} consecutive validations without improvement; stopped at step {training.step:,}"
        )
    store = job.plan.store
    assert store is not None
    split = None if "test" in store.splits else list(store.splits)[-1]
    return command_line("eval", str(run.directory), split=split, data_dir=workspace.data_dir)


def _saved(training: Training) -> str:
    return f"saved {training.saver.last_path} at step {training.step:,}"


def _resume_command(job: Job, workspace: Workspace) -> str:
    size = job.training.world.size
    processes = size if size > 1 else None
    return command_line("train", resume=job.plan.run.directory, processes=processes, data_dir=workspace.data_dir)
