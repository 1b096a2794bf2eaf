"""Records and shows the reports of a training run: metrics.jsonl, trackers, progress."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from txlcli.core.training.reports import Report, StepReport, ValidReport
from txlcli.errors import TxlError
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.system.plain_json import as_json
from txlcli.system.processors import ShareClock
from txlcli.workflows.reporter import Progress, Reporter
from txlcli.workflows.training.plan import Plan

MIN_SHARE = 0.5
"""Share of a processor that this process has got, below which other programs slow it down."""
FIRST_HINT_S = 20.0
"""Time after which that is first seen."""
Line = dict[str, Any]
OnReport = Callable[[Line], None]


class SilentLog:
    """Log of the other processes than rank 0: writes and shows nothing."""

    failure: Exception | None = None
    """See `TrainingLog`."""
    mfu: float | None = None
    """See `TrainingResult`."""

    def record(self, report: Report) -> None:
        """Drop a report."""

    def show_step(self, step: int) -> None:
        """Show nothing."""

    def show_scored(self, tokens: int) -> None:
        """Show nothing."""


@dataclass(kw_only=True)
class TrainingLog:
    """Writes the reports of a training run to metrics.jsonl, passes them on, and shows its progress."""

    plan: Plan
    reporter: Reporter
    progress: Progress
    track: OnReport
    """Experiment trackers."""
    on_report: OnReport | None = None
    clock: ShareClock | None = None
    """Measures if other programs keep the threads of the steps waiting, until the user is told; None does not."""
    failure: OSError | TxlError | None = None
    """Why a report could not be recorded, such as a full disk, or a reader of stdout that has left; none follows it."""
    mfu: float | None = None
    """See `TrainingResult`."""
    path: str = ""
    """How the steps of the last report were computed."""
    steps: StepReport | None = None
    """Last report of training steps."""
    validation: ValidReport | None = None
    """Last validation."""

    def record(self, report: Report) -> None:
        """Write a report to metrics.jsonl, pass it on, and show it; keep an error as the `failure`."""
        if self.failure is None:
            try:
                self._record(report)
            except (OSError, TxlError) as error:
                self.failure = error

    def _record(self, report: Report) -> None:
        run = self.plan.run
        line = as_line(report, run.metric)
        if isinstance(report, StepReport):
            peak = self.plan.peak_tokens_per_s
            if peak is not None:
                self.mfu = report.tokens_per_s / peak
                line["mfu"] = self.mfu
            if report.path != self.path:
                self.path = report.path
                run_directory.update(dataclasses.replace(run, path=self.path))
        run.append_metrics(line)
        self.track(line)
        if self.on_report:
            self.on_report(line)
        if isinstance(report, StepReport):
            self.steps = report
            if report.skipped_steps:
                self.reporter.say(f"skipped {report.skipped_steps} of the steps up to {report.step:,}: not finite")
        else:
            self.validation = report
            self._say_validation(report)
        self.show_step(report.step)

    def _say_validation(self, report: ValidReport) -> None:
        message = f"step {report.step:,}, epoch {report.epoch:.2f}: valid {self._loss(report)} {self.plan.run.metric}"
        if report.averaged:
            message += " with averaged weights"
        if report.best:
            message += " (best so far)"
        self.reporter.say(message)

    def show_step(self, step: int) -> None:
        """Show a step with the last reports, and say once if other programs slow the steps down."""
        self.progress.reach(step, self._describe_reports(step))
        if self.clock is None or self.clock.seconds <= FIRST_HINT_S:
            return
        share = self.clock.share()
        if share < MIN_SHARE:
            self.clock = None
            ratio = f"{1 / max(share, 1e-9):.1f} times its CPU time"
            self.reporter.say(f"a step takes {ratio}: other programs use the processors; `threads` 1 may be faster")

    def _describe_reports(self, step: int) -> str:
        """Return the last numbers of training and validation; those of an earlier step have their step."""
        parts = []
        if self.steps is not None:
            loss = f"train {self._loss(self.steps)} {self.plan.run.metric}{_at_earlier(self.steps, step)}"
            parts.append(f"{loss} ({self.steps.tokens_per_s:,.0f} tokens/s, lr {self.steps.lr:.2g})")
        if self.validation is not None:
            parts.append(f"valid {self._loss(self.validation)}{_at_earlier(self.validation, step)}")
        return ", ".join(parts)

    def _loss(self, report: Report) -> str:
        return metrics.format_measure(metrics.in_metric(report.loss_nats, self.plan.run.metric))

    def show_scored(self, tokens: int) -> None:
        """Show how many tokens a validation has scored so far."""
        self.progress.advance(0, f"validating, {tokens:,} tokens")


def _at_earlier(report: Report, step: int) -> str:
    """Return the step of a report in words if it is not the present one."""
    return "" if report.step == step else f" at step {report.step:,}"


def as_line(report: Report, metric: str) -> Line:
    """Return a report as one flat JSON object with units in its keys, and the corpus's metric next to the nats."""
    line: Line = {"kind": report.kind, **dataclasses.asdict(report)}
    for key in ("skipped_steps", "penalty", "path"):
        if not line.get(key):
            line.pop(key, None)
    line[metric] = metrics.in_metric(report.loss_nats, metric)
    # JSON has no infinity, which a perplexity can be, and the gradient norm of a step that fp16 skips.
    return dict(as_json(line))
