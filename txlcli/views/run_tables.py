"""Shows runs: as a list, side by side with their curves, and among the systems of the paper's Tables 1 to 5."""

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from txlcli import console
from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.paper.published import CONTEMPORARY, FINETUNED

LIST_COLUMNS = ("run", "state", "valid", "test", "saved")
LIST_NOTE = "valid: best in training; test: best score. Details: txl runs show RUN"
SAME_SETTINGS = "The settings are the same."
ONCE_OTHER_SETTINGS = "The settings are the same now; a run had other settings before."
OTHER_TEXTS = "The texts or vocabularies differ: these losses cannot be compared."
OTHER_SYMBOLS = "~"
MARKS = {CONTEMPORARY: "contemporary with the paper", FINETUNED: "with two-step finetuning"}


def show_list(entries: Sequence[dict[str, Any]], runs_dir: Path) -> None:
    """Write the table to stdout."""
    title = f"{len(entries)} run{'s' if len(entries) > 1 else ''} in {runs_dir}"
    console.show_table(title, LIST_COLUMNS, [_list_row(entry) for entry in entries], [LIST_NOTE])


def _list_row(entry: dict[str, Any]) -> list[str]:
    saved = entry["saved"][5:16].replace("T", " ") if entry["saved"] else "-"  # month, day, hour, minute
    if entry["state"] == "damaged":
        return [entry["name"], "damaged", "-", "-", saved]
    done = f" {entry['step'] / entry['max_steps']:.0%}" if entry["state"] in ("unfinished", "interrupted") else ""
    return [entry["name"], entry["state"] + done, _result(entry, "best_valid"), _result(entry, "test"), saved]


def _result(entry: dict[str, Any], key: str) -> str:
    if entry[key] is None or (key == "test" and entry["test_readings"] is None):
        return "-"
    return f"{metrics.format_measure(entry[key])} {entry['metric']}"


def show_run(entry: dict[str, Any], settings: Mapping[str, Any]) -> None:
    """Write all facts about a run to stdout, then its settings."""
    name = entry["name"]
    rows = [["folder", entry["folder"]], ["saved", entry["saved"] or "-"]]
    if entry["state"] == "damaged":
        rows.append(["state", "damaged"])
    else:
        steps = f" (step {entry['step']:,} of {entry['max_steps']:,})" if entry["max_steps"] else ""
        valid, test = _result(entry, "best_valid"), _result(entry, "test")
        if entry["best_valid_step"] is not None:
            valid += f" at step {entry['best_valid_step']:,}"
        if entry["valid_tokens"]:
            valid += f", on {entry['valid_tokens']:,} tokens"
        if entry["test_mem_len"] is not None:
            test += f" with M = {entry['test_mem_len']}"
        if (entry["test_readings"] or 1) > 1:
            test += f", the best of {entry['test_readings']} (valid was not evaluated)"
        rows += [
            ["state", entry["state"] + steps],
            ["recipe", entry["recipe"]],
            ["store", entry["store"]],
            ["parameters", f"{entry['parameters']:,}"],
            ["best valid", valid],
            ["test", test],
        ]
        if entry["state"] in ("unfinished", "interrupted"):
            rows.append(["next", shlex.join(["txl", "train", "--resume", name])])
    rows += [[key, recipe.format_value(value)] for key, value in settings.items()]
    console.show_table(f"run {name}", ("", ""), rows)


def show_comparison(result: dict[str, Any]) -> None:
    """Write the table to stdout."""
    runs = result["runs"]
    metric = runs[0]["metric"] if len({run["metric"] for run in runs}) == 1 else None
    unit = f" {metric}" if metric else ""
    rows: list[list[str | list[str]]] = [
        ["recipe", *(run["recipe"] for run in runs)],
        ["parameters", *_counts(runs, "parameters")],
        ["state", *(run["state"] for run in runs)],
        ["step", *_counts(runs, "step")],
        [f"best valid{unit}", *_losses(runs, "best_valid", metric)],
        ["  at step", *_counts(runs, "best_valid_step")],
        [f"last valid{unit}", *_losses(runs, "last_valid", metric)],
        [f"last train{unit}", *_losses(runs, "last_train", metric)],
        [f"test{unit}", *_losses(runs, "test", metric)],
        ["tokens/s", *_counts(runs, "tokens_per_s")],
        *([name, *map(recipe.format_value, values)] for name, values in result["settings"].items()),
    ]
    changed = any(run["changes"] for run in runs)
    if changed:
        rows.append(["changed settings", *(_describe_changes(run["changes"]) or "-" for run in runs)])
    notes = []
    if not result["settings"]:
        notes.append(ONCE_OTHER_SETTINGS if changed else SAME_SETTINGS)
    notes += [] if result["same_text"] else [OTHER_TEXTS]
    console.show_table("runs compared", ["", *(run["name"] for run in runs)], rows, notes)


def _losses(runs: Sequence[dict[str, Any]], key: str, metric: str | None) -> list[str]:
    """Format losses, with their metrics unless all runs have the same `metric`."""
    return [
        "-" if run[key] is None else f"{metrics.format_measure(run[key])}{'' if metric else ' ' + run['metric']}"
        for run in runs
    ]


def _counts(runs: Sequence[dict[str, Any]], key: str) -> list[str]:
    return ["-" if run[key] is None else f"{run[key]:,.0f}" for run in runs]


def _describe_changes(changes: Sequence[dict[str, Any]]) -> list[str]:
    """Return the step and the settings of each change, one per line."""
    lines = []
    for change in changes:
        lines.append(f"after {change['step']:,}:")
        lines += [
            f"{name} {recipe.format_value(new)} (was {recipe.format_value(old)})"
            for name, (old, new) in change["settings"].items()
        ]
    return lines


def plot_curves(
    path: Path,
    curves: Mapping[tuple[str, str], tuple[list[float], list[float]]],
    *,
    metric: str,
    x_label: str,
    stores: Sequence[str],
) -> None:
    """Plot curves, by run and split: training as thin lines, validation with markers."""
    from txlcli.commands import plots

    colours = {run: f"C{number}" for number, run in enumerate(dict.fromkeys(run for run, _ in curves))}
    styles = {}
    for run, split in curves:
        style = {"marker": "", "linewidth": 1.0, "alpha": 0.45} if split == "train" else {"markersize": 4.0}
        styles[f"{run}, {split}"] = {"color": colours[run], **style}
    plots.plot_curves(
        path,
        {f"{run}, {split}": curve for (run, split), curve in curves.items()},
        x_label=x_label,
        y_label=metrics.METRIC_TITLES[metric],
        title=", ".join(stores),
        log_y=metric == "ppl",
        styles=styles,
    )


def show_rank(result: dict[str, Any], *, verbose: bool = False) -> None:
    """Write the table to stdout."""
    title = f"Table {result['table']} of the paper: {result['title']}, {result['metric']}, the best first"
    columns = ("system", "#param", "valid", "test")
    rows = [_rank_row(row) for row in result["rows"]]
    console.show_table(title, columns, rows, _rank_notes(result), verbose=verbose)


def _rank_row(row: dict[str, Any]) -> list[str]:
    marks = row["mark"] + ("" if row["same_symbols"] else OTHER_SYMBOLS)
    label = f"> {row['label']}" if row["run"] else f"  {row['label']}{' ' + marks if marks else ''}"
    digits = ".2f" if row["run"] else ""
    numbers = [f"{row[split]:{digits}}" if row[split] is not None else "-" for split in ("valid", "test")]
    return [label, row["parameters"] or "-", *numbers]


def _rank_notes(result: dict[str, Any]) -> list[str]:
    notes = []
    ours = result["ours"]
    if ours is not None and ours["comparable"]:
        for split, source in ours["sources"].items():
            notes.append(f"> {split}: {source or f'none yet; {_eval_command(split, ours)}'}")
        if not ours["sources"]["test"]:
            notes.append("> ranked by its validation result.")
    elif ours is not None:
        next_step = "" if ours["reasons"] else f" yet; {_eval_command('test', ours)}"
        notes.append(f"{ours['run']} is not in the table{next_step}")
    if ours is not None:
        notes += [f"not comparable: {reason}" for reason in ours["reasons"]]
    if not all(row["same_symbols"] for row in result["rows"]):
        notes.append(f"{OTHER_SYMBOLS} not comparable: the released code drops symbols that others keep.")
    notes += [f"{mark} {text}" for mark, text in MARKS.items() if any(row["mark"] == mark for row in result["rows"])]
    return notes


def _eval_command(split: str, ours: dict[str, Any]) -> str:
    return shlex.join(["txl", "eval", ours["run"], "--split", split])
