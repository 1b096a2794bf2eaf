"""Experiment trackers: TensorBoard and Weights & Biases behind one interface.

The packages are imported only if a run asks for them. A tracker that fails is left out for the rest of the run.
"""

import contextlib
import importlib.util
import json
import os
import secrets
import sys
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

from txlcli.config import recipe
from txlcli.config.settings import LogSettings
from txlcli.errors import UsageError
from txlcli.runs.run_directory import Run
from txlcli.system.atomic_files import write_text
from txlcli.system.input_files import MAX_SETTINGS, read_text
from txlcli.system.plain_json import parse_json

IDS = "trackers.json"
PROJECT = "txl"
LEFT_OUT = ("step", "best", "averaged", "after")
"""Keys of a line of metrics.jsonl that are not sent as metrics."""


class TensorBoard:
    """Event files in the run directory; points beyond the step at which training begins are replaced."""

    def __init__(self, run: Run, after: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        settings = json.dumps({"run": run.name, **recipe.to_table(run.settings)}, indent=2)
        text = textwrap.indent(settings, "    ")  # Markdown: an indented block is code
        self._writer = SummaryWriter(str(run.directory), purge_step=after + 1)
        self._writer.add_text("settings", text, after + 1)

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics, named like "train/loss_nats", at a step."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()


class WeightsAndBiases:
    """Weights & Biases; the environment of the user decides about the project and the mode (WANDB_MODE)."""

    def __init__(self, run: Run, _after: int) -> None:
        import wandb

        config = recipe.to_table(run.settings)
        self._tracked = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=tracked_id(run),
            name=run.name,
            config=config,
            dir=os.environ.get("WANDB_DIR", str(run.directory)),
            resume="allow",
            settings=wandb.Settings(console="off"),
        )
        self._tracked.config.update(config, allow_val_change=True)  # settings may change on resume

    def log(self, values: dict[str, float], step: int) -> None:
        """Record metrics at a step; W&B ignores steps that it has."""
        self._tracked.log(values, step=step)

    def close(self) -> None:
        """Send what is left."""
        self._tracked.finish()


def tracked_id(run: Run) -> str:
    """Return the id of a run in Weights & Biases, which its directory keeps from its first start on."""
    path = run.directory / IDS
    if not path.exists():
        ids = {"wandb": secrets.token_hex(4)}
        write_text(path, json.dumps(ids, indent=2) + "\n")
    return str(parse_json(read_text(path, MAX_SETTINGS))["wandb"])


Tracker = TensorBoard | WeightsAndBiases
TRACKERS: dict[str, type[Tracker]] = {"tensorboard": TensorBoard, "wandb": WeightsAndBiases}
"""Trackers by the words of log.to, the names of their packages and of txl's extras.

Each is given the run, and the step at which training begins."""


def check_packages(log: LogSettings) -> None:
    """Reject trackers whose packages are missing, before anything is written."""
    for name in log.to:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a directory "wandb" of results has no origin
            raise UsageError(f'log.to = "{name}" needs the {name} package; pip install ".[{name}]"')


@contextlib.contextmanager
def opened(run: Run, *, after: int, say: Callable[[str], None]) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Return a function that sends a line of metrics.jsonl to the trackers of a run.

    A tracker that fails is reported once and receives nothing more; the training continues.
    """
    trackers: dict[str, Tracker] = {}

    @contextlib.contextmanager
    def continuing(name: str) -> Iterator[None]:
        try:
            with contextlib.redirect_stdout(sys.stderr):  # stdout has the results of txl
                yield
        except Exception as error:
            trackers.pop(name, None)
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            say(f"{name} failed ({reason}); training continues without it")

    def write(line: dict[str, Any]) -> None:
        for name, tracker in list(trackers.items()):
            with continuing(name):
                tracker.log(scalars(line), line["step"])

    for requested in dict.fromkeys(run.settings.log.to):
        with continuing(requested):
            trackers[requested] = TRACKERS[requested](run, after)
    try:
        yield write
    finally:
        for name, tracker in list(trackers.items()):
            with continuing(name):
                tracker.close()


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of metrics.jsonl, by names such as "train/loss_nats"."""
    numbers = {}
    for key, value in line.items():
        if isinstance(value, int | float) and key not in LEFT_OUT:
            numbers[f"{line['kind']}/{key}"] = value
    return numbers
