"""Writes the reports of a training run to metrics.jsonl and to experiment trackers, and shows them."""

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from txlcli.core.training.reports import Report
from txlcli.paper import metrics
from txlcli.runs.run_directory import Run
from txlcli.workflows.reporter import Reporter, Step
from txlcli.workflows.training import trackers

Line = dict[str, Any]
OnReport = Callable[[Line], None]


@contextmanager
def opened(run: Run, *, after: int, reporter: Reporter, on_report: OnReport | None = None) -> Iterator["TrainingLog"]:
    """Open the log of a training run while the block runs."""
    steps = run.settings.train.max_steps
    with (
        trackers.opened(run, after=after, say=reporter.say) as track,
        reporter.progress("training", steps, "steps", start=after) as progress,
    ):
        yield TrainingLog(run, reporter, progress, [track, *([on_report] if on_report else [])], after=after)


class TrainingLog:
    """Records the reports of a training run and shows its progress."""

    def __init__(self, run: Run, reporter: Reporter, progress: Step, receivers: list[OnReport], *, after: int) -> None:
        self._run, self._reporter, self._progress, self._receivers = run, reporter, progress, receivers
        self._step, self._detail, self._valid = after, "", ""

    def record(self, report: Report) -> None:
        """Write a report to metrics.jsonl, pass it on, and show it."""
        line = as_line(report, self._run.metric)
        self._run.append_metrics(line)
        for receive in self._receivers:
            receive(line)
        self._step = report.step
        self._show(report, line)

    def show_validation(self, tokens: int) -> None:
        """Show how many tokens a validation has scored so far."""
        self._progress.reach(self._step, f"validating, {tokens:,} tokens")

    def _show(self, report: Report, line: Line) -> None:
        metric = self._run.metric
        value = metrics.format_measure(metrics.in_metric(report.loss_nats, metric))
        if report.kind == "train":
            rate = f"lr {line['lr']:.2g}, {line['tokens_per_s']:,.0f} tokens/s"
            if skipped := line.get("skipped_steps"):
                steps = "step was" if skipped == 1 else "steps were"
                self._reporter.say(f"{skipped} {steps} skipped up to step {report.step:,}: loss or gradient not finite")
            self._detail = f"train {value} {metric}{self._valid}, {rate}"
            self._progress.reach(report.step, self._detail)
            return
        self._valid = f", valid {value}"
        self._progress.reach(self._step, self._detail)
        best = " (best so far)" if line["best"] else ""
        averaged = " with averaged weights" if line["averaged"] else ""
        self._reporter.say(f"step {report.step:,}, epoch {report.epoch:.2f}: valid {value} {metric}{averaged}{best}")


def as_line(report: Report, metric: str) -> Line:
    """Return a report as one flat JSON object with units in its keys, and the corpus's metric next to the nats."""
    line: Line = {"kind": report.kind, **dataclasses.asdict(report)}
    if not line.get("skipped_steps"):
        line.pop("skipped_steps", None)
    line[metric] = metrics.in_metric(report.loss_nats, metric)
    # JSON has no infinity, which a perplexity can be, and the gradient norm of a step that fp16 skips.
    return dict(metrics.without_infinities(line))
