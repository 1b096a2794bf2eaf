"""`txl runs`: list, compare and verify runs."""

from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument

from txlcli import console
from txlcli.commands import completion, runs_compare, runs_published
from txlcli.commands.options import RUNS_DIR, Json, Run, RunsDir
from txlcli.config import recipe
from txlcli.errors import RunError, TxlError, UsageError
from txlcli.paper import metrics
from txlcli.runs import history, run_directory
from txlcli.runs.history import History
from txlcli.system.command_lines import default_runs_dir
from txlcli.views import run_tables

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
    entries = [_entry(directory) for directory in directories]
    if json:
        console.show_json(metrics.without_infinities({"runs_dir": str(runs_dir), "runs": entries}))
    else:
        run_tables.show_list(entries, runs_dir)


@app.command("show")
def show(run_name: Run = None, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """Show a run: its progress, results and settings.

    Settings with their default value are left out.

    Example: txl runs show stdlib
    """
    run = run_directory.find(run_name, runs_dir)
    entry = _entry(run.directory)
    table = recipe.to_table(run.settings)
    if json:
        console.show_json(metrics.without_infinities({**entry, "settings": table}))
    else:
        run_tables.show_run(entry, recipe.changed_keys(run.settings))


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
    from txlcli.views import verification as view
    from txlcli.workflows.verification import verify_runs

    view.show(verify_runs(run_name, runs_dir), json=json)


app.command("compare")(runs_compare.compare)
app.command("published")(runs_published.published_)


def _entry(directory: Path) -> dict[str, Any]:
    """Return the entry of a run; a damaged run is reported and does not hide the others."""
    saved = _date_of(run_directory.last_written(directory))
    try:
        facts = _facts(history.read(run_directory.open_run(directory)))
    except TxlError as error:
        console.say(str(error))
        facts = {**dict.fromkeys(FACTS), "state": "damaged"}
    return {"name": directory.name, "folder": str(directory), "saved": saved, **facts}


def _date_of(seconds: float) -> str | None:
    """Return a time since the epoch as a local date; None if no calendar has it, as a damaged file system shows it."""
    try:
        return datetime.fromtimestamp(seconds).astimezone().isoformat(timespec="seconds")
    except (ValueError, OverflowError, OSError):
        return None


FACTS = (
    "recipe",
    "store",
    "parameters",
    "metric",
    "state",
    "step",
    "max_steps",
    "best_valid",
    "best_valid_step",
    "valid_tokens",
    "test",
    "test_mem_len",
    "test_readings",
)


def _facts(run_history: History) -> dict[str, Any]:
    settings, (test, trials) = run_history.run.settings, run_history.test_result
    valid_tokens, scored = settings.train.valid_tokens, (run_history.best_valid or {}).get("tokens")
    return {
        **run_history.summary(),
        "store": settings.corpus.store,
        "max_steps": settings.train.max_steps if run_history.state != "imported" else None,
        "valid_tokens": valid_tokens if scored == valid_tokens else None,
        "test_mem_len": test.get("mem_len") if test else None,
        "test_readings": trials if test else None,
    }
