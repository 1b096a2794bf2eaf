"""Reproduces tables and figures one after the other, and keeps the report in its directory up to date."""

import itertools
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from txlcli import __version__
from txlcli.config.settings import Settings
from txlcli.core.kernels.device import describe_machine, pick_device
from txlcli.errors import RunError, UsageError
from txlcli.paper import published
from txlcli.runs import history, run_directory
from txlcli.system import locks
from txlcli.system.atomic_files import errors_of_writing, write_text
from txlcli.system.command_lines import command_line
from txlcli.system.input_files import MAX_REPORT, read_text
from txlcli.system.plain_json import as_json, parse_json
from txlcli.workflows.reproduction.items import ITEMS
from txlcli.workflows.reproduction.options import ALL_ITEMS, PAPER_ITEMS, ReproduceOptions
from txlcli.workflows.reproduction.runner import ReclResults, ReportWriter, Runner, seeds_of, settings_of
from txlcli.workflows.reproduction.scales import Scale
from txlcli.workflows.reproduction.section import TABLES, ReportSection, parts
from txlcli.workflows.workspace import Workspace

SECTIONS = "reproduction.json"
LOCK = ".lock"
TITLES = {f"table{n}": f"Table {n}: {table.title}" for n, table in published.TABLES.items()}
TITLES |= TABLES["titles"]


@dataclass(frozen=True, kw_only=True)
class ReproduceResult:
    """Tables and figures reproduced by one call."""

    report: list[str]
    """Files of the report, which has the sections of earlier calls, too."""
    sections: dict[str, ReportSection]
    """By the names of the items."""


@dataclass(frozen=True, kw_only=True)
class ItemCost:
    """Training runs that a table or figure needs; steps and tokens are of the missing ones."""

    item: str
    models: int
    """Number of all its training runs."""
    missing: int
    steps: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class CostsResult:
    """Training runs of several tables or figures; runs that several of them need count for each."""

    scale: str
    description: str
    """Meaning of the scale."""
    items: list[ItemCost]


def list_costs(names: Sequence[str], options: ReproduceOptions, scale: Scale, workspace: Workspace) -> CostsResult:
    """Count the training runs that items need, and what is missing."""
    rows = []
    for name in names:
        seeds = seeds_of(options)
        if name in TABLES["one_seed"]:
            seeds = seeds[:1]
        runs = list(itertools.product(parts(name), seeds))
        missing = steps = tokens = 0
        for part, seed in runs:
            settings = settings_of(scale.models[part], seed)
            steps_left = _steps_left(workspace.runs_dir / scale.run_name(part, seed), settings)
            if steps_left:
                missing += 1
                steps += steps_left
                tokens += steps_left * settings.train.batch_size * settings.train.seg_len
        rows.append(ItemCost(item=name, models=len(runs), missing=missing, steps=steps, tokens=tokens))
    return CostsResult(scale=scale.name, description=scale.description, items=rows)


def _steps_left(directory: Path, settings: Settings) -> int:
    """Return the number of steps that a training run has left: all if there is none with these settings."""
    max_steps = settings.train.max_steps
    if not run_directory.has_weights(directory):  # such a run is trained from the start
        return max_steps
    run = run_directory.read_run(directory)
    if run.settings != settings:
        return max_steps
    past = history.read(run)
    return 0 if past.state == "finished" else max_steps - past.step


def run(
    names: Sequence[str], options: ReproduceOptions, scale: Scale, workspace: Workspace, report: ReportWriter
) -> ReproduceResult:
    """Reproduce items, in the paper's order, into a report, which keeps the sections of earlier calls."""
    directory = options.directory
    machine = describe_machine(pick_device(workspace.device))
    recl_results: ReclResults = {}
    resume_command = _command(names, options, workspace)
    _make_directory(directory)
    message = f"another process writes to {directory}; wait for it, or give another `out`"
    with locks.exclusive(directory / LOCK, message):
        stored = _read(options)
        files = _write(stored, options, report)
        for number, name in enumerate(names, 1):
            workspace.reporter.say(f"{name} ({number} of {len(names)}), {scale.name} scale")
            runner = Runner(
                options=options,
                scale=scale,
                workspace=workspace,
                report=report,
                machine=machine,
                resume_command=resume_command,
                recl_results=recl_results,
            )
            stored[name] = _make(name, runner)
            _write(stored, options, report)  # after each item: an interruption loses only one
    return ReproduceResult(report=files, sections={name: stored[name] for name in names})


def _command(names: Sequence[str], options: ReproduceOptions, workspace: Workspace) -> str:
    """Return the command line that reproduces items."""
    words = [ALL_ITEMS] if tuple(names) == PAPER_ITEMS else names
    device = None if workspace.device == "auto" else workspace.device
    directories = {"data_dir": workspace.data_dir, "runs_dir": workspace.runs_dir}
    return command_line("reproduce", *words, **options.changed(), **directories, device=device)


def _make(name: str, runner: Runner) -> ReportSection:
    """Make an item, and describe how it was made."""
    started = time.monotonic()
    section = ITEMS[name](runner, name)
    notes = section.notes
    if parts(name):
        notes = [runner.scale.description, *notes]
    return replace(
        section,
        name=name,
        title=TITLES[name],
        notes=notes,
        commands=runner.commands,
        readings=runner.readings,
        seconds=time.monotonic() - started,
        scale=runner.scale.name,
        hardware=runner.machine,
    )


def _make_directory(directory: Path) -> None:
    """Make the directory of a report, which a killed process may have left with hidden files only."""
    with errors_of_writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        if (directory / SECTIONS).is_file():
            return
        if any(not path.name.startswith(".") for path in directory.iterdir()):
            raise UsageError(f"{directory} exists and is not a reproduction; give another `out`")


def _read(options: ReproduceOptions) -> dict[str, ReportSection]:
    """Return the sections of a report by name; a new one has none."""
    path = options.directory / SECTIONS
    if not path.exists():
        return {}
    try:
        stored = parse_json(read_text(path, MAX_REPORT))
        scale = stored["scale"]
        sections = {name: ReportSection.from_json(table) for name, table in stored["sections"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise RunError(
            f"{path}: damaged, or of another version of txl ({error}); remove the folder, or give another `out`"
        ) from error
    if scale != options.scale:
        raise UsageError(f"{options.directory} is a reproduction at {scale} scale; give another `out`")
    return sections


def _write(stored: Mapping[str, ReportSection], options: ReproduceOptions, report: ReportWriter) -> list[str]:
    """Write the sections, and the files of the report, whose paths are returned."""
    contents = as_json({"scale": options.scale, "sections": stored})
    write_text(options.directory / SECTIONS, json.dumps(contents))
    title = f"Transformer-XL (Dai et al. 2019), reproduced at {options.scale} scale"
    footer = f"Made by txl {__version__}. The paper's numbers are those of its Tables 1 to 10."
    sections = [stored[name] for name in ITEMS if name in stored]
    return report.write(title, sections, footer, options.directory)
