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
from typing import Any, Protocol

from txlcli.config import recipe
from txlcli.config.sections import LogSettings
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import replacing
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json

IDS = "trackers.json"
PROJECT = "txl"


class Tracker(Protocol):
    """Receives the metrics of one run."""

    @property
    def tracked_id(self) -> str | None:
        """Id to continue the recording with; None if the run directory has it."""

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics, named like "train/loss_nats", at a step."""

    def close(self) -> None:
        """Write what is buffered and end the recording."""


class TensorBoardTracker:
    """Event files in the run directory; points beyond the step at which training begins are replaced."""

    tracked_id = None

    def __init__(self, run: Run, after: int, _tracked_id: str | None) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(str(run.directory), purge_step=after + 1)
        settings = json.dumps({"run": run.name, **recipe.to_table(run.settings)}, indent=2).replace("\n", "\n    ")
        self._writer.add_text("settings", f"    {settings}", after + 1)  # Markdown: an indented block is code

    def log(self, values: dict[str, float], step: int) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """Weights & Biases; the environment of the user decides about the project and the mode (WANDB_MODE)."""

    def __init__(self, run: Run, _after: int, tracked_id: str | None) -> None:
        import wandb

        self.tracked_id, config = tracked_id or secrets.token_hex(4), recipe.to_table(run.settings)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=self.tracked_id,
            name=run.name,
            config=config,
            dir=os.environ.get("WANDB_DIR", str(run.directory)),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        self._run.config.update(config, allow_val_change=True)  # settings may change on resume

    def log(self, values: dict[str, float], step: int) -> None:
        self._run.log(values, step=step)  # W&B ignores steps that it has

    def close(self) -> None:
        self._run.finish()


class TrackioTracker(WandbTracker):
    """Trackio, which stores runs in its local directory and has the interface of W&B."""

    def __init__(self, run: Run, _after: int, tracked_id: str | None) -> None:
        import trackio

        self._run = trackio.init(
            project=os.environ.get("TRACKIO_PROJECT", PROJECT),
            name=tracked_id or run.name,
            config=recipe.to_table(run.settings),
            resume="allow" if tracked_id else "never",
            embed=False,
        )
        self.tracked_id = str(self._run.name)  # Trackio appends a suffix to a name that is taken


class MlflowTracker:
    """MLflow, at MLFLOW_TRACKING_URI; its parameters are final, so that a resumed run keeps the first ones."""

    def __init__(self, run: Run, _after: int, tracked_id: str | None) -> None:
        from mlflow.entities import Metric
        from mlflow.tracking import MlflowClient

        self._client, self._metric = MlflowClient(), Metric
        self._recorded: dict[str, set[int]] = {}
        self.tracked_id = self._run_id = tracked_id or self._new_run(run.name)
        self._client.update_run(self._run_id, status="RUNNING")
        for section, keys in recipe.to_table(run.settings).items() if tracked_id is None else ():
            for key, value in keys.items():
                self._client.log_param(self._run_id, f"{section}.{key}", str(value))

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


BACKENDS: dict[str, Callable[[Run, int, str | None], Tracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
    "mlflow": MlflowTracker,
}
"""Trackers by the words of log.to, the names of their packages and of txl's extras.

Each is made from the run, the step at which training begins, and the id that the tracker had at the first start."""


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
        trackers[name] = tracker = BACKENDS[name](run, after, ids.get(name))
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
