"""`txl train`: train a model from a recipe, or resume a run."""

import sys
from typing import Annotated

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
    from txlcli.views import training as view
    from txlcli.workflows.training import follow, forecast, resume, start
    from txlcli.workflows.training.execution import Limits
    from txlcli.workflows.workspace import Workspace

    if processes > 1 and torchrun.world_size() == 1 and not dry_run:
        sys.exit(follow.start_processes(processes, context.find_root().obj))
    changes = [
        *(overrides or []),
        *([f"train.precision={precision}"] if precision else []),
        *([f"train.attention={attention}"] if attention else []),
        *(["train.compile=true"] if compiled else []),
        *([f"train.seed={seed}"] if seed is not None else []),
        *([f"log.every={log_every}"] if log_every else []),
    ]
    reporter, on_report = console.TerminalReporter(), console.show_json if json else None
    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, reporter=reporter)
    limits = Limits(max_steps=max_steps, max_minutes=max_minutes)
    if resume_run is not None:
        if recipe_source is not None or name is not None or force or dry_run:
            raise UsageError("--resume RUN resumes a run; leave out the recipe, --name, --force and --dry-run")
        if seed is not None:
            raise UsageError(f"--seed {seed}: a resumed run keeps its train.seed; start a new run instead")
        if not torchrun.is_main():
            follow.follow(resume_run, changes, workspace, resumed=True)
            return
        result = resume.resume(resume_run, changes, workspace, limits=limits, on_report=on_report)
    elif recipe_source is None:
        raise UsageError('nothing to train; name a recipe, e.g. "txl train stdlib", or a run with --resume')
    elif dry_run:
        if max_minutes is not None:
            raise UsageError("--dry-run forecasts the time of steps; leave out --max-minutes, or give --max-steps")
        if torchrun.is_main():
            processes = max(processes, torchrun.world_size())
            cost = forecast.forecast(
                recipe_source, changes, workspace, name=name, force=force, max_steps=max_steps, processes=processes
            )
            console.show_result(cost, view.show_forecast, json=json)
        return
    elif not torchrun.is_main():
        follow.follow(recipe_source, changes, workspace, resumed=False)
        return
    else:
        result = start.train(
            recipe_source, changes, workspace, name=name, force=force, limits=limits, on_report=on_report
        )
    if not json:
        view.show_result(result)
