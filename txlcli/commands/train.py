"""`txl train`: train a model from a recipe, or resume a run."""

import sys
from typing import Annotated, Any

import typer
from typer import Argument, Option

from txlcli import console
from txlcli.config.settings import MOST_SEED
from txlcli.errors import UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    Attention,
    DataDir,
    Device,
    Force,
    Json,
    Overrides,
    PrecisionName,
    RunsDir,
)
from txlcli.system import torchrun
from txlcli.views import forecast as forecast_view
from txlcli.views import training_result
from txlcli.workflows.training import follow, forecast, resume, start
from txlcli.workflows.training.execution import Limits


def train(
    context: typer.Context,
    recipe_source: Annotated[
        str | None, Argument(metavar="[RECIPE]", help="A recipe file, or the name of a packaged recipe.")
    ] = None,
    name: Annotated[str | None, Option(help="Name of the run [default: name of the recipe].")] = None,
    resume_run: Annotated[str | None, Option("--resume", metavar="RUN", help="Resume this run.")] = None,
    max_steps: Annotated[
        int | None, Option(min=1, help="Stop and save after this step, without changing the schedule.")
    ] = None,
    max_minutes: Annotated[float | None, Option(min=0.0, help="Stop and save after this time.")] = None,
    processes: Annotated[int, Option(min=1, help="Divide each batch among this many processes, one per GPU.")] = 1,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the plan, its memory and its time; do not train.")
    ] = False,
    log_every: Annotated[int | None, Option(min=1, help="Steps between two reports.")] = None,
    overrides: Overrides = None,
    device: Device = "auto",
    precision: Annotated[
        PrecisionName | None, Option(help="Precision of matrix products [default: as in the recipe].")
    ] = None,
    attention: Attention = None,
    compiled: Annotated[
        bool, Option("--compile", help="Compile the layers with torch.compile; intended for CUDA.")
    ] = False,
    seed: Annotated[int | None, Option(min=0, max=MOST_SEED, help="Random seed.")] = None,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    Ctrl-C saves and stops; --resume continues from exactly there. --set changes any setting: --set model.n_layers=6.

    Example: txl train stdlib --max-minutes 2
    """
    if processes > 1 and torchrun.world_size() == 1 and not dry_run:
        if code := follow.start_processes(processes, context.find_root().obj):
            sys.exit(code)
        return
    changes = [
        *(overrides or []),
        *([f"train.precision={precision}"] if precision else []),
        *([f"train.attention={attention}"] if attention else []),
        *(["train.compile=true"] if compiled else []),
        *([f"train.seed={seed}"] if seed is not None else []),
        *([f"log.every={log_every}"] if log_every else []),
    ]
    where: dict[str, Any] = {"device": device, "data_dir": data_dir}
    new: dict[str, Any] = {"name": name, "force": force, "runs_dir": runs_dir}
    limits = Limits(max_steps=max_steps, max_minutes=max_minutes)
    outputs: dict[str, Any] = {"reporter": console.TerminalReporter(), "on_report": console.show_json if json else None}
    if resume_run is not None:
        if recipe_source is not None or name is not None or force or dry_run:
            raise UsageError("--resume RUN resumes a run; leave out the recipe, --name, --force and --dry-run")
        if seed is not None:
            raise UsageError(f"--seed {seed}: a resumed run keeps its train.seed; start a new run instead")
        if not torchrun.is_main():
            follow.follow_resumed(resume_run, changes, **where, runs_dir=runs_dir)
            return
        result = resume.resume(resume_run, changes, **where, runs_dir=runs_dir, limits=limits, **outputs)
    elif recipe_source is None:
        raise UsageError('nothing to train; name a recipe, e.g. "txl train stdlib", or a run with --resume')
    elif dry_run:
        if max_minutes is not None:
            raise UsageError("--dry-run forecasts the time of steps; leave out --max-minutes, or give --max-steps")
        _forecast(recipe_source, changes, **where, **new, max_steps=max_steps, processes=processes, json=json)
        return
    elif not torchrun.is_main():
        follow.follow_new(recipe_source, changes, **where)
        return
    else:
        result = start.train(recipe_source, changes, **where, **new, limits=limits, **outputs)
    if not json:
        training_result.show(result)


def _forecast(recipe_source: str, changes: list[str], *, processes: int, json: bool, **options: Any) -> None:
    if not torchrun.is_main():
        return
    processes = max(processes, torchrun.world_size())
    reporter = console.TerminalReporter()
    result = forecast.forecast(recipe_source, changes, processes=processes, reporter=reporter, **options)
    console.show_result(result, forecast_view.show, json=json)
