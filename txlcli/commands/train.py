"""`txl train`: learn a model from a recipe, or go on with a run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from txlcli import console
from txlcli.config import recipe
from txlcli.config.settings import MOST_SEED, Settings
from txlcli.errors import UsageError
from txlcli.options import (
    DATA_DIR,
    RUNS_DIR,
    AttentionOption,
    DataDir,
    Device,
    DeviceOption,
    Force,
    Json,
    Overrides,
    Precision,
    RunsDir,
)
from txlcli.paper import metrics
from txlcli.runs import run_folder
from txlcli.system import torchrun
from txlcli.workflows.training import changes as run_changes
from txlcli.workflows.training import follow, messages, plan, start
from txlcli.workflows.training import processes as torchrun_start

if TYPE_CHECKING:
    from txlcli.core.training.loop import Training


def train(
    context: typer.Context,
    recipe_source: Annotated[
        str | None, typer.Argument(metavar="[RECIPE]", help="A recipe file, or the name of a packaged recipe.")
    ] = None,
    name: Annotated[str | None, typer.Option("--name", help="Name of the run; the recipe's by default.")] = None,
    resume: Annotated[str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run.")] = None,
    max_steps: Annotated[
        int | None, typer.Option("--max-steps", min=1, help="Stop after this step and save; the schedule stays.")
    ] = None,
    max_minutes: Annotated[
        float | None, typer.Option("--max-minutes", min=0.0, help="Stop after this time and save; can be resumed.")
    ] = None,
    processes: Annotated[
        int, typer.Option("--processes", min=1, help="Divide the lanes among this many processes, one per GPU.")
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be done, then stop.")] = False,
    log_every: Annotated[int | None, typer.Option("--log-every", min=1, help="Steps between two reports.")] = None,
    overrides: Overrides = None,
    device: DeviceOption = Device.auto,
    precision: Annotated[
        Precision | None, typer.Option("--precision", help="Number format of matrix products; the recipe's by default.")
    ] = None,
    attention: AttentionOption = None,
    compiled: Annotated[
        bool, typer.Option("--compile", help="Compile the layers (torch.compile); made for CUDA.")
    ] = False,
    seed: Annotated[int | None, typer.Option("--seed", min=0, max=MOST_SEED, help="Seed of everything random.")] = None,
    force: Force = False,
    data_dir: DataDir = DATA_DIR,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Train a recipe, or go on with a run.

    Ctrl-C saves and stops; --resume goes on from exactly there. Any setting can be changed: --set model.n_layers=6.

    Example: txl train stdlib --max-minutes 2
    """
    if processes > 1 and torchrun.world_size() == 1 and not dry_run:
        torchrun_start.start(processes, context.find_root().obj)
        return
    processes = max(processes, torchrun.world_size())
    changes = list(overrides or [])
    changes += [f"train.precision={precision.value}"] if precision else []
    changes += [f"train.attention={attention.value}"] if attention else []
    changes += ["train.compile=true"] if compiled else []
    changes += [f"train.seed={seed}"] if seed is not None else []
    changes += [f"log.every={log_every}"] if log_every else []
    places: dict[str, Any] = {"device": device, "data_dir": data_dir, "runs_dir": runs_dir}
    until = start.Until(max_steps=max_steps, max_minutes=max_minutes)
    if resume is not None:
        if recipe_source is not None or name is not None or force or dry_run:
            raise UsageError("--resume RUN goes on with a run; leave out the recipe, --name, --force and --dry-run")
        if seed is not None:
            raise UsageError(f"--seed {seed}: a run that goes on keeps its train.seed; start a new run instead")
        if not torchrun.is_main():
            run = run_changes.changed(run_folder.find(resume, runs_dir), changes)
            follow.follow(run.settings, going_on=run, device=device, data_dir=data_dir)
            return
        training = start.go_on(resume, changes, **places, until=until, json=json)
    elif recipe_source is None:
        raise UsageError('train what? Name a recipe, e.g. "txl train stdlib", or a run with --resume')
    elif dry_run:
        if max_minutes is not None:
            raise UsageError("--dry-run says how long steps would take; leave out --max-minutes, or give --max-steps")
        if torchrun.is_main():
            settings = start.loaded(recipe_source, changes, until_step=max_steps)
            folder = start.new_folder(recipe_source, name, runs_dir, force=force)
            _forecast(
                recipe_source, settings, folder, data_dir, device, processes=processes, until_step=max_steps, json=json
            )
        return
    elif not torchrun.is_main():
        settings = start.loaded(recipe_source, changes)
        follow.follow(settings, going_on=None, device=device, data_dir=data_dir)
        return
    else:
        training = start.learn(recipe_source, changes, name=name, force=force, **places, until=until, json=json)
    if not json:
        show_end(training, data_dir)


def _forecast(
    recipe_source: str,
    settings: Settings,
    folder: Path,
    data_dir: Path,
    device: Device,
    *,
    processes: int,
    until_step: int | None,
    json: bool,
) -> None:
    """Say what the training would take; makes no store and no run."""
    from txlcli.workflows.training import forecast

    store = forecast.store_if_any(settings, data_dir)
    if store is not None:
        messages.text_of(settings, store)  # a text that is too short is refused here as well
    vocab_size = store.vocab.size if store else settings.published.vocab_size
    assert vocab_size is not None
    there = plan.checked_device(settings, device, processes=processes)
    parameters = plan.parameters(settings, vocab_size, f"the store {store.path}" if store else "[published]")
    summary = plan.plan(
        recipe.read_text(recipe_source)[0],
        settings,
        folder,
        vocab_size=vocab_size,
        parameters=parameters,
        until_step=until_step,
        store=store,
        device=there,
        processes=processes,
    )
    summary |= forecast.forecast(settings, vocab_size, store, there, steps=summary["steps"], processes=processes)
    if json:
        console.show_json(summary)
    else:
        forecast.show(summary, plan.in_words(summary))


def show_end(training: "Training", data_dir: Path) -> None:
    """What a training has come to, as a table."""
    run = run_folder.open_run(training.folder)
    best = metrics.format_measure(metrics.in_metric(training.best_nats, run.metric))
    rows = [
        ["run", str(run.folder)],
        ["steps", f"{training.step:,} of {run.settings.train.max_steps:,}"],
        ["epochs", f"{training.epoch:.2f}"],
        [f"best valid {run.metric}", best if training.best_nats < float("inf") else "-"],
        ["next", start.next_command(training, data_dir)],
    ]
    console.show_table(f"{run.name}: {run.parameters:,} parameters", ("", ""), rows)
