"""`txl train`: train a model from a recipe, or resume a run."""

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from txlcli import console
from txlcli.commands.options import Json, argument
from txlcli.errors import UsageError
from txlcli.system import launcher, signals
from txlcli.system.command_lines import command_line
from txlcli.workflows.training.options import LaunchOptions, TrainOptions
from txlcli.workflows.training.resolve import Request, remember_earlier_run, resolve
from txlcli.workflows.workspace import DeviceWorkspace, Workspace


def train(
    context: typer.Context,
    options: TrainOptions,
    launch: LaunchOptions,
    recipe_source: Annotated[
        str | None,
        argument("RECIPE", "A recipe file, the name of a packaged recipe, or of a token store.", "recipes", "stores"),
    ] = None,
    *,
    workspace: DeviceWorkspace,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    Ctrl-C saves and stops; --resume continues from that step. --set changes any setting: --set model.n_layers=6.
    --from RUN begins with the weights of a run, on the same or another text.

    Example: txl train stdlib --max-minutes 2
    """
    # All that is wrong with the command line is reported before PyTorch is imported.
    _check_launch(options, launch)
    if not launch.dry_run:
        signals.explain_end("no step was taken; repeat the command")
    request = resolve(recipe_source, options, workspace, restarts=launcher.restart_count())
    if launch.dry_run:
        _show_forecast(request, launch, workspace, json)
        return
    needs_launcher = launch.processes > 1 or launch.restarts > 0
    if needs_launcher and launcher.place().starter is None:
        sys.exit(_start_processes(request, launch, workspace, context.find_root().obj))
    _train_each(request.with_seeds(launch.seeds, workspace.runs_dir), workspace, json)


def _start_processes(request: Request, launch: LaunchOptions, workspace: Workspace, arguments: list[str]) -> int:
    """Start the processes that train the run together, and return the exit code."""
    train = request.settings.train
    train.check_processes(launch.processes)
    if launch.restarts and request.resumed is None:  # they resume the run of this name
        name = next(request.directories(workspace.runs_dir)).name
        if request.options.name is None:
            arguments = [*arguments, "--name", name]
        remember_earlier_run(name, workspace.runs_dir)
    return launcher.start_processes(
        launch.processes, arguments, rank_timeout_s=train.rank_timeout, restarts=launch.restarts
    )


def _show_forecast(request: Request, launch: LaunchOptions, workspace: Workspace, json: bool) -> None:
    """Show what the run would cost, once."""
    if not launcher.is_main():
        return
    from txlcli.commands import training_tables
    from txlcli.workflows.training import forecast

    processes = max(launch.processes, launcher.place().world_size)
    cost = forecast.run(request, workspace, processes=processes, measures=launch.measure)
    console.show_result(cost, training_tables.show_forecast, json=json)


def _train_each(requests: Sequence[Request], workspace: Workspace, json: bool) -> None:
    """Train one run after the other, and show each result."""
    from txlcli.commands import training_tables
    from txlcli.workflows.training import run

    with signals.silent():
        for request in requests:
            on_report = console.show_json if json else None
            result = run.train(request, workspace, on_report=on_report)
            if not json and launcher.is_main():
                training_tables.show_result(result)
            signals.explain_end(f"{result.run.directory} was saved")
    if len(requests) > 1:
        names = [str(request.options.name) for request in requests]
        command = command_line("runs", "compare", *names, runs_dir=workspace.runs_dir)
        console.say(f'mean and deviation: "{command}"')


def _check_launch(options: TrainOptions, launch: LaunchOptions) -> None:
    """Reject options that contradict each other, or the program which started this process."""
    if launch.measure and not launch.dry_run:
        raise UsageError("`measure` belongs to `dry_run`; add it, or leave out `measure`")
    if launch.dry_run:
        options.exclude("profile", "max_minutes", "resume", because="`dry_run` takes no steps")
    if launch.seeds > 1 and (options.resume or launcher.place().starter is not None):
        raise UsageError("--seeds trains new runs in one process; leave out --resume and torchrun")
    launcher.check_processes(launch.processes)
    if launch.restarts and launcher.place().starter == "torchrun":
        raise UsageError(f"--restarts {launch.restarts}: torchrun started the processes; use its own restarts")
    if launcher.may_restart() and not (options.name or options.resume):
        raise UsageError("torchrun --max-restarts needs --name, so that the processes find the run that they resume")
