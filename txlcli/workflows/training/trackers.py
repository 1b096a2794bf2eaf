"""Experiment trackers: TensorBoard, Weights & Biases, Trackio and MLflow behind one interface.

The packages are imported only if a run asks for them. A tracker that fails is left out for the rest of the run.
"""

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from txlcli.config import recipe
from txlcli.config.sections import LogSettings
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json

IDS = "trackers.json"
PROJECT = "txl"


@dataclass(frozen=True)
class TrackedRun:
    """The run that a tracker records."""

    name: str
    directory: Path
    config: dict[str, dict[str, Any]]
    """Resolved settings by section."""
    after: int
    """Step at which training begins."""
    tracked_id: str | None
    """Id that the tracker returned when the run was started; None for the first start."""


class Tracker(ABC):
    """Receives the metrics of one run."""

    tracked_id: str | None = None
    """Id to continue the recording with; None if the run directory has it."""

    @abstractmethod
    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics, named like "train/loss_nats", at a step."""

    @abstractmethod
    def close(self) -> None:
        """Write what is buffered and end the recording."""


class TensorBoardTracker(Tracker):
    """Event files in the run directory; points beyond the step at which training begins are replaced."""

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory), purge_step=run.after + 1)
        settings = json.dumps({"run": run.name, **run.config}, indent=2).replace("\n", "\n    ")
        self._writer.add_text("settings", f"    {settings}", run.after + 1)  # Markdown: an indented block is code

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _StartedTracker(Tracker):
    """A tracker whose package starts a run with `log` and `finish`; W&B ignores steps that it has."""

    _run: Any

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class WandbTracker(_StartedTracker):
    """Weights & Biases; the environment of the user decides about the project and the mode (WANDB_MODE)."""

    def __init__(self, run: TrackedRun) -> None:
        import wandb

        self.tracked_id = run.tracked_id or secrets.token_hex(4)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.tracked_id,
            name=run.name,
            config=run.config,
            dir=os.environ.get("WANDB_DIR", str(run.directory)),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        self._run.config.update(run.config, allow_val_change=True)  # settings may change on resume


class TrackioTracker(_StartedTracker):
    """Trackio, which stores runs in its local directory."""

    def __init__(self, run: TrackedRun) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=run.tracked_id or run.name,
            config=run.config,
            resume="allow" if run.tracked_id else "never",
            embed=False,
        )
        self.tracked_id = str(self._run.name)  # Trackio appends a suffix to a name that is taken


class MlflowTracker(Tracker):
    """MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._client, self._metric = MlflowClient(), Metric
        self._recorded: dict[str, set[int]] = {}
        self._run_id = self.tracked_id = run.tracked_id or self._new_run(run.name)
        self._client.update_run(self._run_id, status="RUNNING")
        before = self._client.get_run(self._run_id).data.params
        params = {f"{section}.{key}": str(value) for section, keys in run.config.items() for key, value in keys.items()}
        for name, value in params.items():
            if name not in before:
                self._client.log_param(self._run_id, name, value)
            elif before[name] != value:  # parameters of MLflow are final
                self._client.set_tag(self._run_id, f"resumed.{name}", value)

    def _new_run(self, name: str) -> str:
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        known = self._client.get_experiment_by_name(experiment)
        experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
        return str(self._client.create_run(experiment_id, run_name=name).info.run_id)

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics at a step, without those that were recorded before training resumed."""
        points = []
        for name, value in values.items():
            if name not in self._recorded:
                self._recorded[name] = {point.step for point in self._client.get_metric_history(self._run_id, name)}
            if step not in self._recorded[name]:
                points.append(self._metric(name, value, int(time.time() * 1000), step))
        self._client.log_batch(self._run_id, metrics=points)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


BACKENDS: dict[str, Callable[[TrackedRun], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
    "mlflow": MlflowTracker,
}
"""Trackers by the words of log.to, which are also the names of their packages and of txl's extras."""


def requested(log: LogSettings) -> list[str]:
    """Return the names of the trackers that the settings ask for."""
    return list(dict.fromkeys([*log.to, *(["tensorboard"] if log.tensorboard else [])]))


def check_packages(log: LogSettings) -> None:
    """Reject trackers whose packages are missing, before anything is written."""
    for name in requested(log):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a directory "wandb" of results has no origin
            setting = f'log.to = "{name}"' if name in log.to else "log.tensorboard"
            raise UsageError(f'{setting} needs the {name} package; pip install ".[{name}]"')


@contextlib.contextmanager
def opened(run: Run, *, after: int, say: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Return a function that sends a line of metrics.jsonl to the trackers of a run.

    A tracker that fails is reported once and receives nothing more; the training continues.
    """
    trackers: dict[str, Tracker] = {}

    def attempt(name: str, action: Callable[..., None], *arguments: Any) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout has the results of txl
                action(*arguments)
        except Exception as error:
            trackers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"{name} failed ({reason}); training continues without it")

    def start(name: str) -> None:
        path = run.directory / IDS
        ids = parse_json(read_text(path, MAX_SETTINGS)) if path.exists() else {}
        config = recipe.to_table(run.settings)
        trackers[name] = tracker = BACKENDS[name](TrackedRun(run.name, run.directory, config, after, ids.get(name)))
        if tracker.tracked_id != ids.get(name):
            with replacing(path) as draft:
                draft.write_text(json.dumps({**ids, name: tracker.tracked_id}, indent=2) + "\n", encoding="utf-8")

    def write(line: dict[str, Any]) -> None:
        for name, tracker in list(trackers.items()):
            attempt(name, tracker.log, scalars(line), line["step"])

    for name in requested(run.settings.log):
        attempt(name, start, name)
    try:
        yield write
    finally:
        for name, tracker in list(trackers.items()):
            attempt(name, tracker.close)


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of metrics.jsonl, by names such as "train/loss_nats"."""
    left_out = ("step", "best", "averaged")
    return {
        f"{line['kind']}/{key}": value
        for key, value in line.items()
        if isinstance(value, int | float) and key not in left_out
    }
