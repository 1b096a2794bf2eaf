"""Experiment trackers: TensorBoard and Weights & Biases behind one interface.

The packages are imported only if a run asks for them. A tracker that fails is left out for the rest of the run.
"""

import contextlib
import importlib.util
import json
import os
import secrets
import sys
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

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics, named like "train/loss_nats", at a step."""

    def close(self) -> None:
        """Write what is buffered and end the recording."""


class TensorBoardTracker:
    """Event files in the run directory; points beyond the step at which training begins are replaced."""

    def __init__(self, run: Run, after: int) -> None:
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

    def __init__(self, run: Run, _after: int) -> None:
        import wandb

        config = recipe.to_table(run.settings)
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=tracked_id(run),
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


def tracked_id(run: Run) -> str:
    """Return the id of a run in Weights & Biases, which its directory keeps from its first start on."""
    path = run.directory / IDS
    if not path.exists():
        with replacing(path) as draft:
            draft.write_text(json.dumps({"wandb": secrets.token_hex(4)}, indent=2) + "\n", encoding="utf-8")
    return str(parse_json(read_text(path, MAX_SETTINGS))["wandb"])


BACKENDS: dict[str, Callable[[Run, int], Tracker]] = {"tensorboard": TensorBoardTracker, "wandb": WandbTracker}
"""Trackers by the words of log.to, the names of their packages and of txl's extras.

Each is made from the run, and the step at which training begins."""


def check_packages(log: LogSettings) -> None:
    """Reject trackers whose packages are missing, before anything is written."""
    for name in dict.fromkeys(log.to):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a directory "wandb" of results has no origin
            raise UsageError(f'log.to = "{name}" needs the {name} package; pip install ".[{name}]"')


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
        trackers[name] = BACKENDS[name](run, after)

    def write(line: dict[str, Any]) -> None:
        for name, tracker in list(trackers.items()):
            attempt(name, tracker.log, scalars(line), line["step"])

    for requested in dict.fromkeys(run.settings.log.to):
        attempt(requested, start, requested)
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
