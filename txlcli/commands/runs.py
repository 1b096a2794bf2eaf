"""`txl runs`: list the runs, compare them, set one beside the paper's tables."""

from datetime import datetime
from pathlib import Path
from typing import Any

import typer

from txlcli import console
from txlcli.commands import runs_compare, runs_published
from txlcli.errors import RunError, TxlError, UsageError
from txlcli.options import RUNS_DIR, Json, RunsDir
from txlcli.paper import metrics
from txlcli.runs import history, run_folder
from txlcli.runs.history import History

COLUMNS = ("run\nrecipe\nstore", "parameters\nstate", "step\nof", "valid", "test", "saved")
CAPTION = (
    "valid: best validation during training; test: by txl eval, the reading that was\n"
    'best on valid, or, where valid was read in no such way, the lowest ("of N").\n'
    "unfinished: saved, txl train --resume RUN; interrupted: killed, or at work."
)

app = typer.Typer(invoke_without_command=True, add_completion=False, rich_markup_mode=None)


@app.callback()
def runs_(context: typer.Context, runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List runs, compare them, set one beside the paper's.

    Without a command: the list, the newest run first.

    Example: txl runs
    """
    if context.invoked_subcommand is None:
        _list(runs_dir, json=json)
    elif json or runs_dir != RUNS_DIR:
        option = "--json" if json else "--runs-dir"
        raise UsageError(f"{option} comes last: txl runs {context.invoked_subcommand} ... {option}")


@app.command("list")
def list_(runs_dir: RunsDir = RUNS_DIR, json: Json = False) -> None:
    """List the training runs, as "txl runs" does.

    Example: txl runs list --json
    """
    _list(runs_dir, json=json)


app.command("compare")(runs_compare.compare)
app.command("published")(runs_published.published_)


def _list(runs_dir: Path, *, json: bool) -> None:
    folders = run_folder.newest_first(runs_dir)
    if not folders:
        raise RunError(f'no run under {runs_dir}; run "txl train stdlib" first, or say where with --runs-dir')
    entries = [_entry(folder) for folder in folders]
    if json:
        console.show_json(metrics.without_infinities({"runs_dir": str(runs_dir), "runs": entries}))
    else:
        title = f"{len(entries)} run{'s' if len(entries) > 1 else ''} in {runs_dir}"
        console.show_table(title, COLUMNS, [_row(entry) for entry in entries], CAPTION, ruled=True)


def _entry(folder: Path) -> dict[str, Any]:
    """What there is to say of a run in a list; one that is damaged is named and does not hide the others."""
    saved = datetime.fromtimestamp(run_folder.last_written(folder)).astimezone().isoformat(timespec="seconds")
    try:
        known = _facts(history.read(run_folder.open_run(folder)))
    except TxlError as error:
        console.say(str(error))
        known = {**dict.fromkeys(FACTS), "state": "damaged"}
    return {"name": folder.name, "folder": str(folder), "saved": saved, **known}


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
    run, valid, (test, readings) = run_history.run, run_history.best_valid, run_history.test_result
    values = (
        run.recipe_name,
        run.settings.corpus.store,
        run.parameters,
        run.metric,
        run_history.state,
        run_history.step,
        run.settings.train.max_steps if run_history.state != "imported" else None,
        metrics.in_metric(valid["loss_nats"], run.metric) if valid else None,
        valid["step"] if valid else None,
        valid["tokens"] if valid and valid["tokens"] == run.settings.train.valid_tokens else None,
        metrics.in_metric(test["loss_nats"], run.metric) if test else None,
        test.get("mem_len") if test else None,
        readings if test else None,
    )
    return dict(zip(FACTS, values, strict=True))


def _row(entry: dict[str, Any]) -> list[str]:
    date, _, time = entry["saved"].partition("T")
    when = f"{date}\n{time[:5]}"
    if entry["state"] == "damaged":
        return [entry["name"], "-\ndamaged", "-", "-", "-", when]
    valid, test = (
        f"{metrics.format_measure(entry[key])}\n{entry['metric']}" if entry[key] is not None else "-"
        for key in ("best_valid", "test")
    )
    if entry["valid_tokens"]:
        valid += f"\nof {entry['valid_tokens']:,} tokens"
    test += f"\nof {entry['test_readings']}" if (entry["test_readings"] or 1) > 1 else ""
    steps = f"{entry['step']:,}\n{entry['max_steps']:,}" if entry["max_steps"] else "-"
    model = f"{entry['parameters']:,}\n{entry['state']}"
    # A store of the recipe's own name needs no line.
    lines = [entry["name"], *dict.fromkeys((entry["recipe"], entry["store"]))]
    return ["\n".join(lines), model, steps, valid, test, when]
