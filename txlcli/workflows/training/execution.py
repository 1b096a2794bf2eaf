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

from txlcli import __version__
from txlcli.config import recipe
from txlcli.config.settings import Settings
from txlcli.core.kernels.determinism import deterministic_kernels
from txlcli.core.measures.profiling import WARM_UP, StepProfile, StepProfiler
from txlcli.core.training.loop import Training
from txlcli.core.training.reports import Report, StepReport
from txlcli.errors import Interrupted, TxlError, UsageError
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.system import launcher, signals
from txlcli.system.command_lines import command_line
from txlcli.system.plain_json import as_json
from txlcli.workflows.reporter import Reporter, Step
from txlcli.workflows.training import out_of_memory, trackers
from txlcli.workflows.training.options import TrainOptions
from txlcli.workflows.training.plan import Plan
from txlcli.workflows.workspace import Workspace

WAITING, FIRST_HINT_S = 2.0, 20.0
"""Time of training per CPU time of this process from which other programs slow it down, and when it is first seen."""
Line = dict[str, Any]
OnReport = Callable[[Line], None]
TRACE = "trace.json"
"""File of a run folder with the kernels of profiled steps, for Chrome or Perfetto."""


@dataclass(frozen=True)
class TrainingResult:
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


def settings_facts(settings: Settings) -> dict[str, str]:
    """Return the releases and the settings of a process by name."""
    facts = {"the release of txl": __version__, "the release of PyTorch": torch.__version__}
    for section, table in recipe.to_table(settings).items():
        facts |= {f"{section}.{key}": recipe.format_value(value) for key, value in table.items()}
    return facts


def execute(
    plan: Plan, training: Training, workspace: Workspace, options: TrainOptions, on_report: OnReport | None
) -> TrainingResult:
    """Take the steps of a training run, and save its state at the end."""
    run, reporter, data_dir, world = plan.run, workspace.reporter, workspace.data_dir, training.world
    processes = world.size if world.size > 1 else None
    next_command = command_line("train", resume=run.directory, processes=processes, data_dir=data_dir)
    resume_hint = options.resume_hint or f'resume with "{next_command}"'
    with (
        _collect_signals(reporter, training, resume_hint) as caught,
        out_of_memory.explained(plan, training=training),
        deterministic_kernels(training.device, enabled=run.settings.train.deterministic),
    ):
        mfu, profile = _take_steps(plan, training, options, caught, reporter, on_report)
        if profile and on_report:
            on_report({"kind": "profile", **dataclasses.asdict(profile)})
        (stopped_by,) = world.max_of(caught[0] if caught else 0)
    last, code = run.settings.train.max_steps, 128 + stopped_by if stopped_by else TxlError.exit_code
    saved = f"saved {training.saver.last_path} at step {training.step:,}"
    if training.step == 0 and world.is_rank_zero and run_directory.aside(run.directory).exists():
        raise Interrupted(f"no step was taken; the earlier run {run.directory} was kept", code)
    if stopped_by:
        finished = f"{run.directory} has finished its {training.step:,} steps"
        raise Interrupted(f"stopped; {finished if training.has_ended else f'{saved}; {resume_hint}'}", code)
    if training.has_ended:
        if training.step < last:
            reporter.say(
                f"{training.stale} validations in a row brought no improvement; ended at step {training.step:,}"
            )
        assert plan.store is not None
        split = None if "test" in plan.store.splits else list(plan.store.splits)[-1]
        next_command = command_line("eval", str(run.directory), split=split, data_dir=data_dir)
    else:
        reporter.say(f"{saved} of {last:,}; {resume_hint}")
    return TrainingResult(run, training.step, training.epoch, training.best_nats, next_command, mfu, profile)


def _take_steps(
    plan: Plan,
    training: Training,
    options: TrainOptions,
    caught: list[int],
    reporter: Reporter,
    on_report: OnReport | None,
) -> tuple[float | None, StepProfile | None]:
    """Take the steps; rank 0 returns `mfu` and `profile` of the result."""
    limit_s = None if options.max_minutes is None else 60 * options.max_minutes
    deadline = math.inf if limit_s is None else time.monotonic() + limit_s
    failures: list[Exception] = []

    def should_stop() -> bool:
        if launcher.is_orphan() and not caught:
            caught.append(signal.SIGTERM)
        return bool(caught or failures) or time.monotonic() >= deadline

    profiler = _profiler(plan, training, options.profile) if options.profile else None
    with _opened_log(plan, training, reporter, on_report, limit_s) as log:
        on_step: list[Callable[[int], None]] = []
        if log:
            on_step += [log.show_step]
            on_step += [watch_processors(reporter)] if training.device.type == "cpu" else []
            on_step += [profiler.on_step] if profiler else []
        try:
            _say_notes(training, reporter)
            for report in training.run(
                report_every=plan.run.settings.log.every,
                should_stop=should_stop,
                until_step=plan.until_step,
                on_valid_tokens=log.show_validation if log else None,
                on_step=on_step,
            ):
                _say_notes(training, reporter)
                try:
                    if log and not failures:
                        log.record(report)
                except (OSError, TxlError) as error:  # the reader of stdout has left, or the disk is full
                    failures.append(error)
        except TxlError:
            if not failures:
                raise
        finally:
            if profiler:
                profiler.stop()
        if failures:
            raise failures[0]  # all processes have saved, if they could
    return log.mfu if log else None, profiler.result if profiler else None


@contextmanager
def _opened_log(
    plan: Plan, training: Training, reporter: Reporter, on_report: OnReport | None, limit_s: float | None
) -> Iterator["TrainingLog | None"]:
    """Open the trackers and the progress of a training run; None for other processes than rank 0."""
    if not training.world.is_rank_zero:
        yield None
        return
    with (
        trackers.opened(plan.run, after=training.step, say=reporter.warn) as track,
        reporter.progress("training", plan.steps, "steps", start=training.step, limit_s=limit_s) as progress,
    ):
        yield TrainingLog(plan=plan, reporter=reporter, progress=progress, track=track, on_report=on_report)


def _profiler(plan: Plan, training: Training, steps: int) -> StepProfiler:
    """Return a profiler of steps after the warm-up, between two validations."""
    train = plan.run.settings.train
    after = training.step + -(-train.mem_len // train.seg_len) + WARM_UP
    if steps > (before_validation := train.valid_every - after % train.valid_every):
        after += before_validation
    most = min(train.valid_every, plan.steps - after)
    if steps > most:
        raise UsageError(
            f"`profile` {steps}: {max(most, 0):,} steps fit between the warm-up, which ends with step {after:,}, and "
            f"the end or a validation, every {train.valid_every:,} steps; profile fewer steps, or train for more"
        )
    on_cuda = training.device.type == "cuda"
    return StepProfiler(on_cuda=on_cuda, after=after, steps=steps, trace=plan.run.directory / TRACE)


def _say_notes(training: Training, reporter: Reporter) -> None:
    """Tell the user what a step could not do, once."""
    while training.train_step.notes:
        reporter.say(training.train_step.notes.pop(0))


@contextmanager
def _collect_signals(reporter: Reporter, training: Training, resume_hint: str) -> Iterator[list[int]]:
    """Collect the signals that end a command while the block runs.

    After a second one, the save that began is lost, unless it is a warning, or follows one.
    """
    caught: list[int] = []

    def catch(number: int, _: FrameType | None) -> None:
        if number not in signals.WARNINGS and not set(caught) <= set(signals.WARNINGS):
            raise KeyboardInterrupt
        if not caught:
            reporter.say("stopping after this step; saving")
        caught.append(number)

    try:
        with signals.handling(catch):
            yield caught
    except KeyboardInterrupt:
        is_saved = training.saver.last_path.exists()
        kept = f"the last checkpoint is kept; {resume_hint}" if is_saved else "there is no checkpoint"
        raise Interrupted(f"stopped at once, without saving; {kept}", 128 + caught[0]) from None


@dataclass(kw_only=True)
class TrainingLog:
    """Writes the reports of a training run to metrics.jsonl, passes them on, and shows its progress."""

    plan: Plan
    reporter: Reporter
    progress: Step
    track: OnReport
    """Experiment trackers."""
    on_report: OnReport | None = None
    mfu: float | None = None
    """See `TrainingResult`."""
    detail: str = ""
    """Last report of training in words."""
    valid: str = ""
    """Last validation in words."""

    def record(self, report: Report) -> None:
        """Write a report to metrics.jsonl, pass it on, and show it."""
        run = self.plan.run
        line = as_line(report, run.metric)
        if isinstance(report, StepReport) and (peak := self.plan.peak_tokens_per_s) is not None:
            line["mfu"] = self.mfu = report.tokens_per_s / peak
        run.append_metrics(line)
        self.track(line)
        if self.on_report:
            self.on_report(line)
        value = metrics.format_measure(metrics.in_metric(report.loss_nats, run.metric))
        if isinstance(report, StepReport):
            if report.skipped_steps:
                self.reporter.say(f"skipped {report.skipped_steps} of the steps up to {report.step:,}: not finite")
            rate = f"{report.tokens_per_s:,.0f} tokens/s"
            self.detail = f"train {value} {run.metric}, {rate}{self.valid}, lr {report.lr:.2g}"
        else:
            self.valid = f", valid {value}"
            notes = " with averaged weights" * report.averaged + " (best so far)" * report.best
            self.reporter.say(f"step {report.step:,}, epoch {report.epoch:.2f}: valid {value} {run.metric}{notes}")
        self.show_step(report.step)

    def show_step(self, step: int) -> None:
        """Show that a step was taken, with what the last report says."""
        self.progress.reach(step, self.detail)

    def show_validation(self, tokens: int) -> None:
        """Show how many tokens a validation has scored so far."""
        self.progress.advance(0, f"validating, {tokens:,} tokens")


def watch_processors(
    reporter: Reporter,
    clock: Callable[[], float] = time.monotonic,
    cpu_clock: Callable[[], float] = time.process_time,
) -> Callable[[int], None]:
    """Return a function that tells the user once if other programs keep the threads of the steps waiting."""
    start, cpu_start, is_watching = clock(), cpu_clock(), torch.get_num_threads() > 1

    def check(_step: int) -> None:
        nonlocal is_watching
        seconds, cpu_seconds = clock() - start, cpu_clock() - cpu_start
        if is_watching and seconds > max(FIRST_HINT_S, WAITING * cpu_seconds):
            is_watching = False
            ratio = f"{seconds / max(cpu_seconds, 1e-9):.1f} times its CPU time"
            reporter.say(f"a step takes {ratio}: other programs use the processors; `threads` 1 may be faster")

    return check


def as_line(report: Report, metric: str) -> Line:
    """Return a report as one flat JSON object with units in its keys, and the corpus's metric next to the nats."""
    line: Line = {"kind": report.kind, **dataclasses.asdict(report)}
    for key in ("skipped_steps", "penalty"):
        if not line.get(key):
            line.pop(key, None)
    line[metric] = metrics.in_metric(report.loss_nats, metric)
    # JSON has no infinity, which a perplexity can be, and the gradient norm of a step that fp16 skips.
    return dict(as_json(line))
