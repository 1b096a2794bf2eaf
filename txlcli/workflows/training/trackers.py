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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from txlcli.config import recipe
from txlcli.config.settings import LogSettings
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json

IDS = "trackers.json"
PROJECT = "txl"


class Tracker(Protocol):
    """Receives the metrics of one run."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics, named like "train/loss_nats", at a step."""

    def close(self) -> None:
        """Write what is buffered and end the recording."""


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


class TensorBoardTracker:
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


class WandbTracker:
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

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics at a step; W&B ignores steps that it has."""
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
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

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)

    def close(self) -> None:
        self._run.finish()


class MlflowTracker:
    """MLflow, at MLFLOW_TRACKING_URI."""

    def __init__(self, run: TrackedRun) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._client, self._metric = MlflowClient(), Metric
        self._recorded: dict[str, set[int]] = {}
        self._resumed = run.tracked_id is not None
        params = {f"{section}.{key}": str(value) for section, keys in run.config.items() for key, value in keys.items()}
        if run.tracked_id is None:
            experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
            known = self._client.get_experiment_by_name(experiment)
            experiment_id = known.experiment_id if known else self._client.create_experiment(experiment)
            self.tracked_id = self._client.create_run(experiment_id, run_name=run.name).info.run_id
            before: dict[str, str] = {}
        else:
            self.tracked_id = run.tracked_id
            before = self._client.get_run(self.tracked_id).data.params
            self._client.update_run(self.tracked_id, status="RUNNING")
        for name, value in params.items():
            if name not in before:
                self._client.log_param(self.tracked_id, name, value)
            elif before[name] != value:  # parameters of MLflow are final
                self._client.set_tag(self.tracked_id, f"resumed.{name}", value)

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics at a step, without those that were recorded before training resumed."""
        now = int(time.time() * 1000)
        new = {name: value for name, value in values.items() if step not in self._steps(name)}
        points = [self._metric(name, value, now, step) for name, value in new.items()]
        self._client.log_batch(self.tracked_id, metrics=points)

    def close(self) -> None:
        self._client.set_terminated(self.tracked_id)

    def _steps(self, name: str) -> set[int]:
        """Return the steps of a metric that an earlier part of training recorded."""
        if self._resumed and name not in self._recorded:
            history = self._client.get_metric_history(self.tracked_id, name)
            self._recorded[name] = {point.step for point in history}
        return self._recorded.get(name, set())


BACKENDS: dict[str, Callable[[TrackedRun], Any]] = {
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
        if not _is_installed(name):
            setting = f'log.to = "{name}"' if name in log.to else "log.tensorboard"
            raise UsageError(f'{setting} needs the {name} package; pip install "transformer-xl[{name}]"')


def _is_installed(package: str) -> bool:
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None  # a directory "wandb" of results has no origin


@contextlib.contextmanager
def opened(run: Run, *, after: int, say: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Return a function that sends a line of metrics.jsonl to the trackers of a run.

    A tracker that fails is reported once and receives nothing more; the training continues.
    """
    trackers: dict[str, Tracker] = {}

    def attempt(name: str, action: Callable[[], None]) -> None:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout has the results of txl
                action()
        except Exception as error:
            trackers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"{name} failed ({reason}); training continues without it")

    def start(name: str) -> None:
        ids = _read_ids(run.directory)
        config = recipe.to_table(run.settings)
        tracker = BACKENDS[name](TrackedRun(run.name, run.directory, config, after, ids.get(name)))
        trackers[name] = tracker
        tracked_id = getattr(tracker, "tracked_id", None)  # TensorBoard has none: it appends to the run directory
        if tracked_id is not None and tracked_id != ids.get(name):
            _write_ids(run.directory, {**ids, name: tracked_id})

    def write(line: dict[str, Any]) -> None:
        values = scalars(line)
        for name, tracker in list(trackers.items()):
            attempt(name, lambda tracker=tracker: tracker.log(values, line["step"]))  # type: ignore[misc]

    for name in requested(run.settings.log):
        attempt(name, lambda name=name: start(name))  # type: ignore[misc]
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


def _read_ids(directory: Path) -> dict[str, str]:
    """Return the ids under which trackers know the run; none if the file is missing."""
    path = directory / IDS
    return parse_json(read_text(path, MAX_SETTINGS)) if path.exists() else {}


def _write_ids(directory: Path, ids: dict[str, str]) -> None:
    with replacing(directory / IDS) as draft:
        draft.write_text(json.dumps(ids, indent=2) + "\n", encoding="utf-8")
