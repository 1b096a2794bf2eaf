"""`txl train`: train a model from a recipe, or resume a run."""

import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from txlcli import console
from txlcli.commands import completion
from txlcli.commands.options import (
    DATA_DIR,
    HARDWARE_OPTIONS,
    RUNS_DIR,
    Attention,
    Bandwidth,
    DataDir,
    Device,
    DeviceFlops,
    DeviceMemory,
    Force,
    Json,
    Overrides,
    PrecisionName,
    RunsDir,
    parse_hardware,
)
from txlcli.config import own_text, recipe
from txlcli.config.ranges import MAX_COUNT
from txlcli.config.settings import MAX_SEED
from txlcli.errors import RunError, UsageError
from txlcli.runs import history, run_directory
from txlcli.system import launcher

if TYPE_CHECKING:
    from txlcli.workflows.training.execution import Limits
    from txlcli.workflows.workspace import Workspace


def train(
    context: typer.Context,
    recipe_source: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            help="A recipe file, the name of a packaged recipe, or of a token store.",
            autocompletion=completion.recipes_and_stores,
        ),
    ] = None,
    name: Annotated[str | None, Option(help="Name of the run [default: name of the recipe].")] = None,
    resume_run: Annotated[
        str | None, Option("--resume", metavar="RUN", help="Resume this run.", autocompletion=completion.runs)
    ] = None,
    max_steps: Annotated[
        int | None, Option(min=1, help="Stop and save after this step, without changing the schedule.")
    ] = None,
    max_minutes: Annotated[float | None, Option(min=0.0, help="Stop and save after this time.")] = None,
    processes: Annotated[int, Option(min=1, help="Divide each batch among this many processes, one per GPU.")] = 1,
    restarts: Annotated[
        int,
        Option(
            metavar="N", min=0, help="Start the processes again, up to N times, if one is lost; they resume the run."
        ),
    ] = 0,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Print the plan, its memory and its time; do not train.")
    ] = False,
    verbose: Annotated[
        bool, Option("--verbose", "-v", help="With --dry-run: compare the attention backends, too; takes seconds more.")
    ] = False,
    devices: Annotated[
        int | None,
        Option(metavar="N", min=1, max=MAX_COUNT, help="With --dry-run: forecast a training on N other GPUs."),
    ] = None,
    device_memory: DeviceMemory = None,
    bandwidth: Bandwidth = None,
    device_flops: DeviceFlops = None,
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
    seed: Annotated[int | None, Option(min=0, max=MAX_SEED, help="Random seed.")] = None,
    skip_nonfinite: Annotated[
        int | None,
        Option(metavar="N", min=0, help="Skip up to N steps in a row whose loss or gradient is not finite."),
    ] = None,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Train a model from a recipe, or resume a run.

    Ctrl-C saves and stops; --resume continues from exactly there. --set changes any setting: --set model.n_layers=6.

    Example: txl train stdlib --max-minutes 2
    """
    changes = [
        *(overrides or []),
        *([f"train.precision={precision}"] if precision else []),
        *([f"train.attention={attention}"] if attention else []),
        *(["train.compile=true"] if compiled else []),
        *([f"train.seed={seed}"] if seed is not None else []),
        *([f"train.skip_nonfinite={skip_nonfinite}"] if skip_nonfinite is not None else []),
        *([f"log.every={log_every}"] if log_every else []),
    ]
    # All that is wrong with the command line is reported before PyTorch is imported.
    hardware = parse_hardware(device_memory, bandwidth, device_flops)
    _check_devices(devices, hardware, dry_run=dry_run, processes=processes, device=device, verbose=verbose)
    _check_launcher(processes, restarts, name or resume_run)
    interrupted = None if dry_run else _run_before_restart(recipe_source, name, changes, runs_dir)
    if interrupted is not None:
        recipe_source, name, force, seed, changes, resume_run = None, None, False, None, [], interrupted
    _check_verbose(verbose=verbose, dry_run=dry_run)
    if resume_run is not None:
        if recipe_source is not None or name is not None or force or dry_run:
            raise UsageError("--resume RUN resumes a run; leave out the recipe, --name, --force and --dry-run")
        if seed is not None:
            raise UsageError(f"--seed {seed}: a resumed run keeps its train.seed; start a new run instead")
        run_directory.find(resume_run, runs_dir)
    elif recipe_source is None:
        raise UsageError('nothing to train; name a recipe, e.g. "txl train stdlib", or a run with --resume')
    elif dry_run and max_minutes is not None:
        raise UsageError("--dry-run forecasts the time of steps; leave out --max-minutes, or give --max-steps")
    else:
        repeated = name is not None or force or dry_run or launcher.is_started()
        recipe_source, name, changes = _resolve(recipe_source, name, changes, data_dir, runs_dir, repeated=repeated)
    if (processes > 1 or restarts) and not launcher.is_started() and not dry_run:
        arguments = context.find_root().obj
        if restarts and resume_run is None and name is None:  # they resume the run of this name
            name = next(run_directory.free_directories(runs_dir, recipe.read_text(str(recipe_source))[0])).name
            arguments = [*arguments, "--name", name]
        sys.exit(launcher.start_processes(processes, arguments, restarts=restarts))
    from txlcli.workflows.training.execution import Limits
    from txlcli.workflows.workspace import Workspace

    workspace = Workspace(data_dir=data_dir, runs_dir=runs_dir, device=device, reporter=console.TerminalReporter())
    if dry_run:
        if not launcher.is_main():
            return
        forecast = (
            partial(_forecast, processes=processes, backends=verbose)
            if devices is None
            else partial(_forecast_devices, devices=devices, hardware=hardware)
        )
        forecast(str(recipe_source), changes, workspace, name, max_steps, force=force, json=json)
    else:
        limits = Limits(max_steps=max_steps, max_minutes=max_minutes)
        with launcher.silent_signals():
            _train(recipe_source, resume_run, changes, workspace, name, limits, force=force, json=json)


def _check_verbose(*, verbose: bool, dry_run: bool) -> None:
    """Refuse --verbose for a training, which has nothing more to show."""
    if verbose and not dry_run:
        raise UsageError("--verbose compares attention backends in a forecast; add --dry-run, or leave it out")


def _check_devices(
    devices: int | None,
    hardware: Mapping[str, float | None],
    *,
    dry_run: bool,
    processes: int,
    device: str,
    verbose: bool,
) -> None:
    """Refuse options of a forecast for other GPUs where there is none."""
    given = [] if devices is None else ["--devices"]
    given += [option for option, value in zip(HARDWARE_OPTIONS, hardware.values(), strict=True) if value is not None]
    if given and not dry_run:
        raise UsageError(f"{given[0]} is for a forecast; add --dry-run")
    if given and devices is None:
        raise UsageError(f"{given[0]} describes the GPUs of a forecast; add their number with --devices N")
    if devices is not None and processes > 1:
        raise UsageError("--devices forecasts one process per GPU; leave out --processes")
    if devices is not None and verbose:
        raise UsageError("--verbose compares the attention backends of this machine; leave it out with --devices")
    if devices is not None and device == "cpu":
        raise UsageError("--devices forecasts a training on GPUs; leave out --device cpu, or use --processes")


def _check_launcher(processes: int, restarts: int, name: str | None) -> None:
    """Refuse options that contradict the program which started this process."""
    launcher.check_processes(processes)
    place = launcher.place()
    if restarts and place.world_size > 1 and not launcher.is_own():
        raise UsageError(f"--restarts {restarts}: {place.launcher} started the processes; use its own restarts")
    if launcher.may_restart() and name is None:
        raise UsageError("torchrun --max-restarts needs --name, so that the processes find the run that they resume")


def _run_before_restart(source: str | None, name: str | None, changes: list[str], runs_dir: Path) -> str | None:
    """Return the run that this process resumes, since it was started again after a failure."""
    if launcher.restart_count() == 0:
        return None
    console.say(f"a process was lost; all processes were started again (restart {launcher.restart_count()})")
    if source is None or name is None or not run_directory.is_run(name, runs_dir):
        return None
    run = run_directory.find(name, runs_dir)
    made_before = (run.directory / run_directory.LAST).exists() and run.settings == recipe.load(source, changes)
    return str(run.directory) if made_before else None


def _train(
    recipe_source: str | None,
    resume_run: str | None,
    changes: list[str],
    workspace: "Workspace",
    name: str | None,
    limits: "Limits",
    *,
    force: bool,
    json: bool,
) -> None:
    """Train a recipe, or resume a run, and show the result."""
    from txlcli.commands import training_tables as view
    from txlcli.workflows.training import resume, start

    on_report = console.show_json if json else None
    if resume_run is not None:
        result = resume.resume(resume_run, changes, workspace, limits=limits, on_report=on_report)
    else:
        source = str(recipe_source)
        result = start.train(source, changes, workspace, name=name, force=force, limits=limits, on_report=on_report)
    if not json and launcher.is_main():
        view.show_result(result)


def _forecast(
    recipe_source: str,
    changes: list[str],
    workspace: "Workspace",
    name: str | None,
    max_steps: int | None,
    *,
    processes: int,
    force: bool,
    backends: bool,
    json: bool,
) -> None:
    """Forecast a training on this machine, and show its cost."""
    from txlcli.commands import training_tables as view
    from txlcli.workflows.training import forecast

    processes = max(processes, launcher.world_size())
    cost = forecast.forecast(
        recipe_source,
        changes,
        workspace,
        name=name,
        force=force,
        max_steps=max_steps,
        processes=processes,
        backends=backends,
    )
    console.show_result(cost, view.show_forecast, json=json)


def _forecast_devices(
    recipe_source: str,
    changes: list[str],
    workspace: "Workspace",
    name: str | None,
    max_steps: int | None,
    *,
    devices: int,
    hardware: Mapping[str, float | None],
    force: bool,
    json: bool,
) -> None:
    """Forecast a training on other GPUs, and show its cost on each."""
    from txlcli.commands import training_tables as view
    from txlcli.workflows.training import scaling

    cost = scaling.forecast_devices(
        recipe_source,
        changes,
        workspace,
        name=name,
        force=force,
        max_steps=max_steps,
        devices=devices,
        hardware=scaling.Hardware(**hardware),
    )
    console.show_result(cost, view.show_devices, json=json)


def _resolve(
    source: str, name: str | None, changes: list[str], data_dir: Path, runs_dir: Path, *, repeated: bool
) -> tuple[str, str | None, list[str]]:
    """Return the recipe, the name of the run and the settings to change; `source` may be the name of a token store."""
    from txlcli.data.token_store import TokenStore

    store_name = source if own_text.is_store(source, data_dir) else None
    if store_name is not None:
        unit = TokenStore.open(data_dir / f"{store_name}.h5").unit
        source, changes = own_text.RECIPES[unit], [f"corpus.store={store_name}", *changes]
        console.say(f'{store_name} is a token store (unit {unit}): training the recipe "{source}" on it')
    settings = recipe.load(source, changes)
    path = data_dir / f"{settings.corpus.store}.h5"
    if not repeated and path.is_file():
        same = list(history.same_runs(settings, TokenStore.open(path).digest("train"), runs_dir))
        for run, step in same:
            if step >= settings.train.max_steps:
                raise RunError(
                    f'{run.directory} is finished and has the same settings, text and seed; evaluate it with "txl eval '
                    f'{run.name}", train it again under another --name, or replace it with --force'
                )
        if same:
            run, step = same[0]
            console.say(
                f'{run.directory} has the same settings; "txl train --resume {run.name}" continues it at step {step:,}'
            )
    if store_name is not None and name is None:
        name = next(run_directory.free_directories(runs_dir, store_name)).name
    return source, name, changes
