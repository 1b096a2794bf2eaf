"""`txl train`: train a model from a recipe, or resume a run."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument

from txlcli import console
from txlcli.commands.completion import names_of
from txlcli.commands.options import Json
from txlcli.config.settings import Settings
from txlcli.errors import UsageError
from txlcli.runs import run_directory
from txlcli.system import launcher, signals
from txlcli.system.command_lines import command_line
from txlcli.workflows.options import LaunchOptions, TrainOptions
from txlcli.workflows.training.request import read_settings, resolve, with_seeds
from txlcli.workflows.workspace import DeviceWorkspace, Workspace


def train(
    context: typer.Context,
    options: TrainOptions,
    launch: LaunchOptions,
    recipe_source: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            help="A recipe file, the name of a packaged recipe, or of a token store.",
            autocompletion=names_of("recipes", "stores"),
        ),
    ] = None,
    *,
    workspace: DeviceWorkspace,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    Ctrl-C saves and stops; --resume continues from exactly there. --set changes any setting: --set model.n_layers=6.
    --from RUN begins with the weights of a run, on the same or another text.

    Example: txl train stdlib --max-minutes 2
    """
    # All that is wrong with the command line is reported before PyTorch is imported.
    _check_launch(options, launch)
    dry_run, runs_dir = launch.dry_run, workspace.runs_dir
    if not dry_run:
        signals.explain_end(_kept_by_a_signal(options, workspace))
    if options.resume is None:
        recipe_source, options = resolve(recipe_source, options, workspace.data_dir, runs_dir, console.say)
    elif recipe_source is not None or dry_run:
        raise UsageError("--resume RUN resumes a run; leave out the recipe and --dry-run")
    name, settings = read_settings(recipe_source, options, runs_dir)
    if not dry_run and (interrupted := _run_before_restart(settings, options, runs_dir)):
        recipe_source, options = None, TrainOptions(resume=interrupted, max_steps=options.max_steps)
    if (launch.processes > 1 or launch.restarts) and not launcher.is_started() and not dry_run:
        settings.train.check_processes(launch.processes)
        arguments = context.find_root().obj
        if launch.restarts and options.resume is None and options.name is None:  # they resume this run
            arguments = [*arguments, "--name", next(run_directory.free_directories(runs_dir, name)).name]
        timeout = settings.train.rank_timeout
        sys.exit(
            launcher.start_processes(launch.processes, arguments, rank_timeout_s=timeout, restarts=launch.restarts)
        )
    from txlcli.commands import training_tables
    from txlcli.workflows.training import forecast

    if not dry_run:
        runs = with_seeds(name, settings.train.seed, options, launch.seeds, runs_dir)
        _train_each(recipe_source, runs, workspace, json)
    elif launcher.is_main():
        processes = max(launch.processes, launcher.world_size())
        cost = forecast.run(recipe_source, options, workspace, processes=processes)
        console.show_result(cost, training_tables.show_forecast, json=json)


def _train_each(source: str | None, runs: Sequence[TrainOptions], workspace: Workspace, json: bool) -> None:
    """Train one run after the other, and show each result."""
    from txlcli.commands import training_tables
    from txlcli.workflows.training import start

    with signals.silent():
        for options in runs:
            result = start.run(source, options, workspace, on_report=console.show_json if json else None)
            if not json and launcher.is_main():
                training_tables.show_result(result)
            signals.explain_end(f"{result.run.directory} was saved")
    if len(runs) > 1:
        names = [str(options.name) for options in runs]
        console.say(f'mean and deviation: "{command_line("runs", "compare", *names, runs_dir=workspace.runs_dir)}"')


def _kept_by_a_signal(options: TrainOptions, workspace: DeviceWorkspace) -> str:
    """Return what a signal before the first step leaves, and how to continue."""
    if options.resume is None:
        return "nothing was saved yet; repeat the command to start again"
    command = command_line(
        "train", "--resume", options.resume, data_dir=workspace.data_dir, runs_dir=workspace.runs_dir
    )
    return f'{options.resume} stays as it was saved; resume with "{command}"'


def _check_launch(options: TrainOptions, launch: LaunchOptions) -> None:
    """Reject options that contradict each other, or the program which started this process."""
    if launch.dry_run:
        options.exclude("profile", "max_minutes", because="`dry_run` takes no steps")
    if launch.seeds > 1 and (options.resume or launcher.is_started()):
        raise UsageError("--seeds trains new runs in one process; leave out --resume and torchrun")
    launcher.check_processes(launch.processes)
    if launch.restarts and launcher.world_size() > 1 and not launcher.is_own():
        raise UsageError(f"--restarts {launch.restarts}: torchrun started the processes; use its own restarts")
    if launcher.may_restart() and not (options.name or options.resume):
        raise UsageError("torchrun --max-restarts needs --name, so that the processes find the run that they resume")


def _run_before_restart(settings: Settings, options: TrainOptions, runs_dir: Path) -> str | None:
    """Return the run that this process resumes, since it was started again after a failure."""
    if launcher.restart_count() == 0:
        return None
    console.say(f"a process was lost; all processes were started again (restart {launcher.restart_count()})")
    if options.name is None or not run_directory.is_run(options.name, runs_dir):
        return None
    run = run_directory.find(options.name, runs_dir)
    has_begun = run.settings == settings and (run.directory / run_directory.LAST).exists()
    return str(run.directory) if has_begun else None
