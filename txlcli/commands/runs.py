"""`txl runs`: list, show and verify runs; the module `runs_compare` has the other subcommands."""

import shlex
from typing import Annotated

import typer
from typer import Argument

from txlcli import console
from txlcli.commands import completion, runs_compare
from txlcli.commands.options import RUNS_DIR, Json, Run, RunsDir
from txlcli.commands.verification import show_checks
from txlcli.config import recipe
from txlcli.errors import RunError, UsageError
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.system.command_lines import default_runs_dir
from txlcli.workflows import overview
from txlcli.workflows.overview import RunEntry

LIST_COLUMNS = ("run", "state", "valid", "test", "saved")
LIST_NOTE = "valid: best in training; test: best score. Details: txl runs show RUN"

app = typer.Typer(invoke_without_command=True, add_completion=False, suggest_commands=False, rich_markup_mode=None)


@app.callback()
def runs_(context: typer.Context, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List, compare or verify runs.

    Without a subcommand, lists the runs, the most recent first.

    Example: txl runs
    """
    if context.invoked_subcommand is None:
        list_(runs_dir, json)
    elif json or runs_dir not in (RUNS_DIR, default_runs_dir()):
        option = "--json" if json else "--runs-dir"
        raise UsageError(f"{option} must come last: txl runs {context.invoked_subcommand} ... {option}")


@app.command("list")
def list_(runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List the training runs, as "txl runs" does.

    Example: txl runs list --json
    """
    directories = run_directory.newest_first(runs_dir)
    if not directories:
        raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or give another --runs-dir')
    entries = [overview.describe(directory, console.TerminalReporter()) for directory in directories]
    if json:
        console.show_json({"runs_dir": str(runs_dir), "runs": [entry.to_json() for entry in entries]})
        return
    title = f"{len(entries)} run{'s' if len(entries) > 1 else ''} in {runs_dir}"
    console.show_table(title, LIST_COLUMNS, [_list_row(entry) for entry in entries], [LIST_NOTE])


def _list_row(entry: RunEntry) -> list[str]:
    saved = entry.saved[5:16].replace("T", " ")  # month, day, hour, minute
    state = entry.state
    if state in ("unfinished", "interrupted") and entry.step is not None and entry.max_steps:
        state += f" {entry.step / entry.max_steps:.0%}"
    return [entry.name, state, _result(entry, entry.best_valid), _result(entry, _test(entry)), saved]


def _result(entry: RunEntry, result: float | None) -> str:
    return "-" if result is None else f"{metrics.format_measure(result)} {entry.metric}"


def _test(entry: RunEntry) -> float | None:
    return None if entry.test_readings is None else entry.test


@app.command("show")
def show(run_name: Run = None, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show a run: its progress, results and settings.

    Settings with their default value are left out.

    Example: txl runs show stdlib
    """
    run = run_directory.find(run_name, runs_dir)
    entry = overview.describe(run.directory, console.TerminalReporter())
    if json:
        settings = metrics.without_infinities(recipe.to_table(run.settings))
        console.show_json({**entry.to_json(), "settings": settings})
        return
    rows = [["folder", entry.folder], ["saved", entry.saved]]
    rows += [["state", "damaged"]] if entry.state == "damaged" else _rows(entry)
    rows += [[key, recipe.format_value(value)] for key, value in recipe.changed_keys(run.settings).items()]
    console.show_table(f"run {entry.name}", ("", ""), rows)


def _rows(entry: RunEntry) -> list[list[str]]:
    steps = f" (step {entry.step:,} of {entry.max_steps:,})" if entry.max_steps else ""
    valid, test = _result(entry, entry.best_valid), _result(entry, _test(entry))
    if entry.best_valid_step is not None:
        valid += f" at step {entry.best_valid_step:,}"
    if entry.valid_tokens:
        valid += f", on {entry.valid_tokens:,} tokens"
    if entry.test_mem_len is not None:
        test += f" with M = {entry.test_mem_len}"
    if (entry.test_readings or 1) > 1:
        test += f", the best of {entry.test_readings} (valid was not evaluated)"
    rows = [
        ["state", entry.state + steps],
        ["recipe", str(entry.recipe)],
        ["store", str(entry.store)],
        ["parameters", f"{entry.parameters:,}"],
        ["best valid", valid],
        ["test", test],
    ]
    if entry.state in ("unfinished", "interrupted"):
        rows.append(["next", shlex.join(["txl", "train", "--resume", entry.name])])
    return rows


@app.command("verify")
def verify(
    run_name: Annotated[
        str | None,
        Argument(metavar="RUN", help="Name or folder of a run [default: all].", autocompletion=completion.runs),
    ] = None,
    runs_dir: RunsDir = RUNS_DIR,
    json: Json = False,
) -> None:
    """Compare the files of a run, or of all, with their checksums.

    "readable": the file has no checksum and can be read, such as a log.

    Example: txl runs verify stdlib
    """
    from txlcli.workflows.verification import verify_runs

    show_checks(verify_runs(run_name, runs_dir), json=json)


app.command("compare")(runs_compare.compare)
app.command("published")(runs_compare.published_)
