"""Facts of a run in words, each with its name: its state, results and settings."""

from pathlib import Path

from txlcli.config import recipe
from txlcli.paper import metrics
from txlcli.runs import run_directory
from txlcli.runs.summaries import RunSummary
from txlcli.system.command_lines import command_line


def settings_of(run: run_directory.Run) -> list[list[str]]:
    """Return the settings of a run that are not the default, each with its name."""
    return [[key, recipe.format_value(value)] for key, value in recipe.changed_keys(run.settings).items()]


def describe(entry: RunSummary) -> list[list[str]]:
    """Return the state and the results of a run in words, each with its name."""
    state = entry.state
    if entry.max_steps:
        state += f" (step {entry.step:,} of {entry.max_steps:,})"
    valid = with_metric(entry, entry.best_valid)
    if entry.best_valid_step is not None:
        valid += f" at step {entry.best_valid_step:,}"
    if entry.valid_tokens:
        valid += f", on {entry.valid_tokens:,} tokens"
    test = with_metric(entry, entry.test)
    if entry.test_setting is not None:
        test += f" with {entry.test_setting}"
    if entry.test_readings is not None and entry.test_readings > 1:
        test += f", the best of {entry.test_readings} (none was chosen on valid)"
    rows = [
        ["folder", entry.folder],
        ["saved", entry.saved[:16].replace("T", " ")],
        ["state", state],
        ["recipe", str(entry.recipe)],
        ["store", str(entry.store)],
        ["parameters", f"{entry.parameters:,}"],
        ["best valid", valid],
        ["test", test],
    ]
    origin = entry.origin
    if origin is not None:
        weights = f"{origin.run}/{origin.weights}, step {origin.step:,}"
        if origin.new_symbols:
            weights += f", {origin.new_symbols:,} new symbols"
        rows.append(["began with", weights])
    if entry.missing_reports is not None:
        rows.append(["note", entry.missing_reports])
    if entry.state in ("unfinished", "interrupted"):
        rows.append(["next", _next_step(entry)])
    return rows


def _next_step(entry: RunSummary) -> str:
    """Return the command that resumes a run, or advice if it was stopped before its first checkpoint."""
    if run_directory.has_weights(Path(entry.folder)):
        return command_line("train", resume=entry.folder)
    return 'no checkpoint was saved; "txl runs prune" deletes it, and --force replaces it'


def with_metric(entry: RunSummary, result: float | None) -> str:
    """Return a result of a run with its metric; "-" for None."""
    return "-" if result is None else f"{metrics.format_measure(result)} {entry.metric}"
