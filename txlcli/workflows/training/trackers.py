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
from contextlib import AbstractContextManager
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

Log = Callable[[dict[str, float], int], None]
"""Records metrics, named like "train/loss_nats", at a step."""


@contextlib.contextmanager
def tensorboard(run: Run, after: int) -> Iterator[Log]:
    """Write event files to the run directory; points beyond the step at which training begins are replaced."""
    from torch.utils.tensorboard import SummaryWriter

    settings = json.dumps({"run": run.name, **recipe.to_table(run.settings)}, indent=2)
    with SummaryWriter(str(run.directory), purge_step=after + 1) as writer:
        writer.add_text("settings", textwrap.indent(settings, "    "), after + 1)  # Markdown: an indented block is code

        def log(values: dict[str, float], step: int) -> None:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

        yield log


@contextlib.contextmanager
def wandb(run: Run, _after: int) -> Iterator[Log]:
    """Send to Weights & Biases; the environment of the user decides about the project and the mode (WANDB_MODE)."""
    import wandb as package

    config = recipe.to_table(run.settings)
    with package.init(
        project=os.environ.get("WANDB_PROJECT", PROJECT),
        id=tracked_id(run),
        name=run.name,
        config=config,
        dir=os.environ.get("WANDB_DIR", str(run.directory)),
        resume="allow",
        settings=package.Settings(console="off"),
    ) as tracked:
        tracked.config.update(config, allow_val_change=True)  # settings may change on resume
        yield lambda values, step: tracked.log(values, step=step)  # W&B ignores steps that it has


def tracked_id(run: Run) -> str:
    """Return the id of a run in Weights & Biases, which its directory keeps from its first start on."""
    path = run.directory / IDS
    if not path.exists():
        ids = {"wandb": secrets.token_hex(4)}
        write_text(path, json.dumps(ids, indent=2) + "\n")
    return str(parse_json(read_text(path, MAX_SETTINGS))["wandb"])


BACKENDS: dict[str, Callable[[Run, int], AbstractContextManager[Log]]] = {"tensorboard": tensorboard, "wandb": wandb}
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
    trackers: dict[str, tuple[Log, contextlib.ExitStack]] = {}

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
        for name, (log, _) in list(trackers.items()):
            with continuing(name):
                log(scalars(line), line["step"])

    for requested in dict.fromkeys(run.settings.log.to):
        with continuing(requested):
            stack = contextlib.ExitStack()
            log = stack.enter_context(BACKENDS[requested](run, after))
            trackers[requested] = (log, stack)
    try:
        yield write
    finally:
        for name, (_, stack) in list(trackers.items()):
            with continuing(name):
                stack.close()


def scalars(line: dict[str, Any]) -> dict[str, float]:
    """Return the numbers in a line of metrics.jsonl, by names such as "train/loss_nats"."""
    numbers = {}
    for key, value in line.items():
        if isinstance(value, int | float) and key not in LEFT_OUT:
            numbers[f"{line['kind']}/{key}"] = value
    return numbers
