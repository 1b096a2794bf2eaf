"""Where the reports of a training go: metrics.jsonl, the terminal, TensorBoard."""

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from txlcli import console
from txlcli.config.settings import LogSettings
from txlcli.errors import UsageError
from txlcli.paper import metrics
from txlcli.runs.run_folder import Run

if TYPE_CHECKING:
    from txlcli.core.training.reports import Report


@contextmanager
def recording(run: Run, *, after: int, json: bool) -> Iterator["Recorder"]:
    """Records reports everywhere, while a live bar shows how far the training is.

    Args:
        run: its folder gets the files.
        after: the step that the training begins or goes on from; what stands in curves beyond it is taken again.
        json: also print every report as one line of JSON.
    """
    steps = run.settings.train.max_steps
    with _tensorboard(run, after) as write_curve, console.progress("training", steps, "steps") as bar:
        yield Recorder(run, bar, write_curve, after=after, json=json)


class Recorder:
    """Writes reports down, and shows people a training: a live bar, or plain lines, or JSON lines."""

    def __init__(
        self, run: Run, bar: console.Step, write_curve: Callable[[dict[str, Any]], None], *, after: int, json: bool
    ) -> None:
        self._run, self._bar, self._write_curve, self._json = run, bar, write_curve, json
        self._step, self._detail, self._valid = after, "", ""

    def record(self, report: "Report") -> None:
        """Write a report down and show it."""
        line = as_line(report, self._run.metric)
        self._run.append_metrics(line)
        self._write_curve(line)
        self._step = report.step
        self._show(report, line)

    def validating(self, tokens: int) -> None:
        """Show how many tokens a validation has scored so far."""
        self._bar.reach(self._step, f"validating, {tokens:,} tokens")

    def _show(self, report: "Report", line: dict[str, Any]) -> None:
        metric = self._run.metric
        value = metrics.format_measure(metrics.in_metric(report.loss_nats, metric))
        if self._json:
            console.show_json(line)
        if report.kind == "train":
            rate = f"lr {line['lr']:.2g}, {line['tokens_per_s']:,.0f} tokens/s"
            self._detail = f"train {value} {metric}{self._valid}, {rate}"
            self._bar.reach(report.step, self._detail)
            return
        self._valid = f", valid {value}"
        self._bar.describe(self._detail)
        best = " (best so far)" if line["best"] else ""
        averaged = " with averaged weights" if line["averaged"] else ""
        console.say(f"step {report.step:,}, epoch {report.epoch:.2f}: valid {value} {metric}{averaged}{best}")


def as_line(report: "Report", metric: str) -> dict[str, Any]:
    """A report as one flat JSON object, units in the keys, the corpus's metric beside the nats."""
    line: dict[str, Any] = {"kind": report.kind, **dataclasses.asdict(report)}
    line[metric] = metrics.in_metric(report.loss_nats, metric)
    # JSON has no infinity: a perplexity may be too large, a gradient of fp16 too (its step is left out).
    return dict(metrics.without_infinities(line))


def check_tensorboard(log: LogSettings) -> None:
    """Refuse a wish for TensorBoard files without its package, before anything is written."""
    if log.tensorboard and importlib.util.find_spec("tensorboard") is None:
        raise UsageError('log.tensorboard needs the tensorboard package; pip install "txl[tensorboard]"')


@contextmanager
def _tensorboard(run: Run, after: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes one line of metrics as curves; does nothing unless log.tensorboard is set."""
    if not run.settings.log.tensorboard:
        yield lambda line: None
        return
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run.folder), purge_step=after + 1) as writer:

        def write(line: dict[str, Any]) -> None:
            for key, value in line.items():
                if isinstance(value, int | float) and key not in ("step", "best", "averaged"):
                    writer.add_scalar(f"{line['kind']}/{key}", value, line["step"])

        yield write
